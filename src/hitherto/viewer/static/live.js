// What other processes write appears here: a list says so, a conversation takes its new messages in.
const NEAR = 160; // pixels above the end within which people are taken to read along

export function startLive(reader) {
  const { base, page, conversation } = document.body.dataset;
  if (!["list", "conversation", "map"].includes(page)) return;
  const url = new URL(`${base}/events`, location.href);
  if (page !== "list") url.searchParams.set("conversation", conversation);
  const pill = new Pill();
  const tell = () => pill.show("There is something new", () => location.reload());
  let busy = Promise.resolve();
  const change = (act) => { busy = busy.then(act).catch((error) => console.info(error)); };
  let events = null;
  const listen = () => {
    events = new EventSource(url);
    events.addEventListener("locked", () => location.reload());
    events.addEventListener("lost", () => pill.show("The store cannot be reached"));
    events.addEventListener("changed", () => change(() => (reader ? takeIn(reader, pill) : tell())));
  };
  listen();
  addEventListener("pagehide", () => events.close());
  // A browser has six connections to a host, for all tabs: one that nobody sees holds none, and looks when it is seen again.
  let before = null;
  document.addEventListener("visibilitychange", () => {
    events.close();
    if (document.hidden) {
      if (!reader) before = twin();
    } else {
      listen();
      change(async () => (reader ? takeIn(reader, pill) : (await before) !== (await twin()) && tell()));
    }
  });
}

// What the page shows, as JSON.
async function twin() {
  const { base, page } = document.body.dataset;
  const path = page === "list" ? `${base}/index.json` : `${location.pathname}.json`;
  return (await fetch(path + location.search, { credentials: "same-origin" })).text();
}

async function takeIn(reader, pill) {
  const { base, conversation } = document.body.dataset;
  const answer = await fetch(`${base}/c/${conversation}.json?count=1`, { credentials: "same-origin" });
  if (answer.status === 404) {
    pill.show("This conversation was deleted", () => location.assign(`${base}/`));
    return;
  }
  const { head } = (await answer.json()).conversation;
  const end = reader.thread.getBoundingClientRect().bottom;
  const follows = reader.stop >= reader.length && end < innerHeight + NEAR;
  const added = await reader.refresh();
  const last = () => reader.chunks.at(-1).lastElementChild;
  if (added > 0) {
    const words = `${added} new message${added === 1 ? "" : "s"}`;
    document.getElementById("status").textContent = words;
    if (follows) last().scrollIntoView({ block: "end", behavior: "smooth" });
    else pill.show(words, () => reader.reveal(last(), "end"));
  } else if (head && head !== reader.head && reader.stop >= reader.length && !reader.element(head)) {
    pill.show("New messages on another branch", () => location.assign(`${base}/c/${conversation}`));
  }
  reader.head = head;
}

class Pill {
  show(words, act) {
    this.element?.remove();
    const pill = document.createElement("button");
    pill.className = "pill";
    pill.textContent = words;
    pill.addEventListener("click", () => { pill.remove(); act?.(); });
    document.body.append(pill);
    this.element = pill;
  }
}
