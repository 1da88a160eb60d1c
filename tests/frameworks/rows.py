"""What each framework does in one row of the matrix of docs/recording.md: two turns, the first with a tool.

    python rows.py NAME URL STORE

It runs in the framework's own environment. `NAME` is a function below; each shows what to give to `record`.
"""

import asyncio
import sys
from collections.abc import Callable

from words import FIRST, PROMPT, SECOND  # beside this script

import hitherto
from hitherto import Store


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: the name of the city
    """
    return f"sunny in {city}"


# -- LangChain


def langchain_openai(url: str, store: Store) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="k", max_retries=0)
    hitherto.record(model.root_client, store)
    _langchain(model)


def langchain_openai_async(url: str, store: Store) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="k", max_retries=0)
    hitherto.record(model.root_async_client, store)
    asyncio.run(_langchain_async(model))


def langchain_anthropic(url: str, store: Store) -> None:
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(model="m", base_url=url, api_key="k", max_retries=0)
    hitherto.record(model._client, store)
    _langchain(model)


def langchain_google(url: str, store: Store) -> None:
    from langchain_google_genai import ChatGoogleGenerativeAI

    model = ChatGoogleGenerativeAI(model="m", google_api_key="k", base_url=url, max_retries=1)
    hitherto.record(model.client, store)
    _langchain(model)


def _langchain(model) -> None:
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

    able, said = model.bind_tools([get_weather]), [SystemMessage(PROMPT)]
    for question in (FIRST, SECOND):
        said.append(HumanMessage(question))
        said.append(able.invoke(said))
        while said[-1].tool_calls:
            said += [ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]) for call in said[-1].tool_calls]
            said.append(able.invoke(said))


async def _langchain_async(model) -> None:
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

    able, said = model.bind_tools([get_weather]), [SystemMessage(PROMPT)]
    for question in (FIRST, SECOND):
        said.append(HumanMessage(question))
        said.append(await able.ainvoke(said))
        while said[-1].tool_calls:
            said += [ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]) for call in said[-1].tool_calls]
            said.append(await able.ainvoke(said))


# -- openai-agents


def openai_agents_responses(url: str, store: Store) -> None:
    from agents import OpenAIResponsesModel

    _openai_agents(url, store, OpenAIResponsesModel)


def openai_agents_chat(url: str, store: Store) -> None:
    from agents import OpenAIChatCompletionsModel

    _openai_agents(url, store, OpenAIChatCompletionsModel)


def _openai_agents(url: str, store: Store, kind) -> None:
    from agents import Agent, Runner, SQLiteSession, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = hitherto.record(AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0), store)
    agent = Agent("a", instructions=PROMPT, model=kind("m", client), tools=[function_tool(get_weather)])

    async def talk() -> None:
        session = SQLiteSession("s")
        for question in (FIRST, SECOND):
            await Runner.run(agent, question, session=session)

    asyncio.run(talk())


# -- pydantic-ai


def pydantic_ai_openai(url: str, store: Store) -> None:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = hitherto.record(AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0), store)
    _pydantic_ai(OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client)))


def pydantic_ai_responses(url: str, store: Store) -> None:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = hitherto.record(AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0), store)
    _pydantic_ai(OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=client)))


def pydantic_ai_anthropic(url: str, store: Store) -> None:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = hitherto.record(AsyncAnthropic(base_url=url, api_key="k", max_retries=0), store)
    _pydantic_ai(AnthropicModel("m", provider=AnthropicProvider(anthropic_client=client)))


def pydantic_ai_google(url: str, store: Store) -> None:
    from google.genai import Client
    from google.genai.types import HttpOptions
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    client = hitherto.record(Client(api_key="k", http_options=HttpOptions(base_url=url)), store)
    _pydantic_ai(GoogleModel("m", provider=GoogleProvider(client=client)))


def _pydantic_ai(model) -> None:
    from pydantic_ai import Agent

    agent = Agent(model, instructions=PROMPT, tools=[get_weather])

    async def talk() -> None:
        first = await agent.run(FIRST)
        await agent.run(SECOND, message_history=first.all_messages())

    asyncio.run(talk())


# -- Microsoft's


def agent_framework(url: str, store: Store) -> None:
    from agent_framework.openai import OpenAIChatCompletionClient
    from openai import AsyncOpenAI

    client = hitherto.record(AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0), store)
    agent = OpenAIChatCompletionClient(model="m", async_client=client).as_agent(
        instructions=PROMPT, tools=[get_weather]
    )

    async def talk() -> None:
        session = agent.create_session()
        for question in (FIRST, SECOND):
            await agent.run(question, session=session)

    asyncio.run(talk())


def autogen(url: str, store: Store) -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    about = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "family": "unknown",
        "structured_output": False,
    }
    model = OpenAIChatCompletionClient(model="m", base_url=f"{url}/v1", api_key="k", model_info=about, max_retries=0)
    hitherto.record(model._client, store)
    agent = AssistantAgent("a", model, system_message=PROMPT, tools=[get_weather], reflect_on_tool_use=True)

    async def talk() -> None:
        for question in (FIRST, SECOND):
            await agent.run(task=question)

    asyncio.run(talk())


# -- others that speak chat completions


def haystack(url: str, store: Store) -> None:
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    generator = OpenAIChatGenerator(Secret.from_token("k"), "m", api_base_url=f"{url}/v1", max_retries=0)
    if hasattr(generator, "warm_up"):
        generator.warm_up()
    hitherto.record(generator.client, store)
    tools, said = [create_tool_from_function(get_weather)], [ChatMessage.from_system(PROMPT)]
    for question in (FIRST, SECOND):
        said.append(ChatMessage.from_user(question))
        said += generator.run(said, tools=tools)["replies"]
        while said[-1].tool_calls:
            said += [ChatMessage.from_tool(get_weather(**call.arguments), call) for call in said[-1].tool_calls]
            said += generator.run(said, tools=tools)["replies"]


def smolagents(url: str, store: Store) -> None:
    from smolagents import OpenAIServerModel

    model = OpenAIServerModel("m", api_base=f"{url}/v1", api_key="k")
    hitherto.record(model.client, store)
    said = [{"role": "system", "content": PROMPT}]
    for question in ("Hello.", SECOND):
        said.append({"role": "user", "content": [{"type": "text", "text": question}]})
        said.append({"role": "assistant", "content": [{"type": "text", "text": model.generate(said).content}]})


def instructor(url: str, store: Store) -> None:
    import instructor as library
    from openai import OpenAI

    client = library.from_openai(hitherto.record(OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0), store))
    said = [{"role": "system", "content": PROMPT}]
    for question in ("Hello.", SECOND):
        said.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="m", messages=said, response_model=None)
        said.append({"role": "assistant", "content": answer.choices[0].message.content})


def litellm(url: str, store: Store) -> None:
    import litellm as library
    from openai import OpenAI

    client = hitherto.record(OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0), store)
    said = [{"role": "system", "content": PROMPT}]
    for question in ("Hello.", SECOND):
        said.append({"role": "user", "content": question})
        answer = library.completion("openai/m", messages=said, client=client)
        said.append({"role": "assistant", "content": answer.choices[0].message.content})


def llama_index_openai(url: str, store: Store) -> None:
    from llama_index.llms.openai import OpenAI

    model = OpenAI(model="gpt-4o", api_base=f"{url}/v1", api_key="k", max_retries=0)
    hitherto.record(model._get_client(), store)
    _llama_index(model)


def llama_index_anthropic(url: str, store: Store) -> None:
    from llama_index.llms.anthropic import Anthropic

    model = Anthropic(model="claude-sonnet-4-5", base_url=url, api_key="k", max_retries=0)
    hitherto.record(model._client, store)
    _llama_index(model)


def _llama_index(model) -> None:
    from llama_index.core.llms import ChatMessage

    said = [ChatMessage(role="system", content=PROMPT)]
    for question in ("Hello.", SECOND):
        said.append(ChatMessage(role="user", content=question))
        said.append(model.chat(said).message)


def strands_openai(url: str, store: Store) -> None:
    from openai import AsyncOpenAI
    from strands.models.openai import OpenAIModel

    client = hitherto.record(AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0), store)
    _strands(OpenAIModel(client=client, model_id="m"))


def strands_anthropic(url: str, store: Store) -> None:
    from strands.models.anthropic import AnthropicModel

    model = AnthropicModel(client_args={"base_url": url, "api_key": "k", "max_retries": 0}, model_id="m", max_tokens=9)
    hitherto.record(model.client, store)
    _strands(model)


def _strands(model) -> None:
    from strands import Agent, tool

    agent = Agent(model, system_prompt=PROMPT, tools=[tool(get_weather)], callback_handler=None)

    async def talk() -> None:  # in one event loop: an async client belongs to the loop that used it first
        for question in (FIRST, SECOND):
            await agent.invoke_async(question)

    asyncio.run(talk())


def adk(url: str, store: Store) -> None:
    from google.adk.agents import Agent
    from google.adk.models import Gemini
    from google.adk.runners import InMemoryRunner
    from google.genai import Client
    from google.genai.types import Content, HttpOptions, Part

    client = hitherto.record(Client(api_key="k", http_options=HttpOptions(base_url=url)), store)
    model = Gemini(model="gemini-2.5-flash", client=client)
    runner = InMemoryRunner(Agent(name="a", model=model, instruction=PROMPT, tools=[get_weather]), app_name="x")

    async def talk() -> None:
        session = await runner.session_service.create_session(app_name="x", user_id="u")
        for question in (FIRST, SECOND):
            said = Content(role="user", parts=[Part(text=question)])
            async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=said):
                pass

    asyncio.run(talk())


def main() -> None:
    name, url, path = sys.argv[1:]
    row: Callable[[str, Store], None] = globals()[name]
    with hitherto.open(path) as store:
        row(url, store)


if __name__ == "__main__":
    main()
