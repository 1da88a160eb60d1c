"""`hitherto postgres`: commands for the administrator of a PostgreSQL server.

The commands print statements. An administrator runs them, with any trusted tool. `role` makes no connection, so it
works without access to the server; `distribute` asks what is done already, and runs the rest if it is told to.
"""

import click

from ._store_options import Place, with_place
from ._terminal import say


@click.group(short_help="For administrators of a PostgreSQL server.")
def postgres() -> None:
    """For administrators of a PostgreSQL server that holds stores."""


@postgres.command(short_help="Print the SQL that gives a role its rights.")
@click.argument("name")
@click.option("--only", is_flag=True, help="On the rows of --workspace alone; the role cannot change that.")
@click.option("--read-only", is_flag=True, help="To read, and not to write.")
@with_place
def role(place: Place, name: str, only: bool, read_only: bool) -> None:
    """Print the SQL statements that give the role NAME what it needs to use the store, and nothing more. They are not
    run, and no connection is made: the owner of the tables runs them, once the store is there, in psql for example.

    With --only the role sees the rows of --workspace and no others, whatever SQL it runs. Without, it sees those of the
    workspace that a connection says it is for. A superuser sees everything.
    """
    from ..opening import rights_of  # noqa: PLC0415  # help needs none

    if not name or "\0" in name:
        raise click.UsageError("a role has a name, without U+0000 in it")
    statements = rights_of(name, place.workspace if only else None, read_only=read_only)
    click.echo("BEGIN;\nSET LOCAL lock_timeout = '10s';")  # a statement that waits for a table blocks other clients
    click.echo("SET LOCAL client_min_messages = warning;")  # or the server reports each missing policy
    for statement in statements:
        click.echo(f"{statement};")
    click.echo("COMMIT;")
    bound = f"only workspace {place.workspace}" if only else "every workspace, one at a time"
    say(f"{'reads' if read_only else 'reads and writes'} {bound}; CREATE ROLE comes first")


@postgres.command(short_help="Print the SQL that spreads the tables over a Citus cluster.")
@click.option("--run", is_flag=True, help="Run the statements, too.")
@with_place
def distribute(place: Place, run: bool) -> None:
    """Print the SQL statements that spread the tables of the store over the nodes of its Citus cluster, by workspace.
    Those that were run before are left out.

    The address names the coordinator. With --run it names a superuser, whom row-level security hides no rows from. The
    store has to be there: hitherto init makes one. Stop the programs that use it meanwhile, and start them again.
    """
    from ..opening import distribute as left  # noqa: PLC0415  # help needs none

    if not place.is_server:
        raise click.UsageError("the store is a file; only the tables of a server can be distributed")
    statements = left(place.location, run=run)
    for statement in statements:
        click.echo(f"{statement};")
    if not statements:
        say("all tables are distributed")
    elif run:
        say(f"distributed {len(statements)} tables; hitherto doctor looks at them")
