"""Chat sessions with a deployment of Ray Serve: each session is a lite topic, so it is answered in order.

    ray job submit --working-dir docs/examples -- python chat_sessions.py [sessions] [nameservers]

    user ──question──► lite topic of the session ──► the replica that has the session ──answer──► user

A replica is killed in the middle. A session without an answer for some seconds is opened again: another
replica takes it over, and continues where the first one has acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter, defaultdict, deque
from statistics import quantiles

from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.client import LiteConfig, MessageExt
from cluster.client.aio import Admin, LiteConsumer, Producer
from store.message.group_config import SubscriptionGroupConfig

QUESTIONS, ANSWERS, AGENTS, USERS = "chat-questions", "chat-answers", "chat-agents", "chat-users"
TURNS, REPLICAS, PATIENCE_S = 3, 4, 5
IN_FLIGHT, PART = 200, 250


@serve.deployment(num_replicas=REPLICAS, ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=100)
class Agent:
    """Answers the questions of the sessions that it has; a model would be called in `_answer`."""

    def __init__(self, nameservers: str) -> None:
        self._producer = Producer(nameservers)
        config = LiteConfig(nameservers, invisible_ms=PATIENCE_S * 1000)
        self._consumer = LiteConsumer(group=AGENTS, topic=QUESTIONS, config=config)
        self._serving = asyncio.create_task(self._serve())

    async def open(self, sessions: list[str]) -> int:
        """Take over sessions; the replica that had them gets no more of their questions."""
        await self._consumer.subscribe(*sessions)
        return os.getpid()

    async def check_health(self) -> None:
        """Let Serve replace this replica if it serves no more."""
        if self._serving.done():
            self._serving.result()

    async def _serve(self) -> None:
        while True:
            sessions = defaultdict(list)
            for question in await self._consumer.receive(max_messages=32):
                sessions[question.lite_topic].append(question)
            await asyncio.gather(*map(self._answer, sessions.values()))

    async def _answer(self, questions: list[MessageExt]) -> None:
        for question in questions:
            text = f"answer to {question.body.decode()}"
            await self._producer.send(ANSWERS, text, lite_topic=question.lite_topic)
            await self._consumer.ack(question)


async def prepare(nameservers: str) -> None:
    """Create the topics and groups. One client gets the answers for all users (lite.sub.wildcard)."""
    agents = {"lite.sub.model": "Exclusive", "lite.sub.client.quota": "20000"}
    async with Admin(nameservers) as admin:
        for topic in (QUESTIONS, ANSWERS):
            attributes = {"message.type": "LITE", "lite.topic.expiration": "60"}
            await admin.create_topic(topic, attributes=attributes)
        for group, topic, more in (
            (AGENTS, QUESTIONS, agents),
            (USERS, ANSWERS, {"lite.sub.wildcard": "true"}),
        ):
            attributes = {"lite.bind.topic": topic, **more}
            await admin.put_group(SubscriptionGroupConfig(group, attributes=attributes))


class Users:
    """The users: they ask TURNS questions in each session, and wait for each answer before the next one."""

    def __init__(self, sessions: list[str], agents: DeploymentHandle, producer: Producer) -> None:
        self._agents = agents
        self._producer = producer
        self._next = deque(sessions * TURNS)
        self._asked: dict[str, float] = {}
        self.owner: dict[str, int] = {}
        self.answered: Counter[str] = Counter()
        self.took_ms: list[float] = []
        self.repeated = 0

    @property
    def are_waiting(self) -> bool:
        """True until all questions are answered."""
        return bool(self._next or self._asked)

    async def open(self, sessions: list[str]) -> None:
        """Open sessions, or open them again; Serve chooses a replica for each part of them."""

        async def open_part(part: list[str]) -> None:
            self.owner |= dict.fromkeys(part, await self._agents.open.remote(part))

        await asyncio.gather(*(open_part(sessions[at : at + PART]) for at in range(0, len(sessions), PART)))

    async def ask(self) -> None:
        """Ask the next questions."""
        new = []
        while self._next and len(self._asked) < IN_FLIGHT and self._next[0] not in self._asked:
            new.append(self._next.popleft())
            self._asked[new[-1]] = time.monotonic()
        texts = {each: f"question {self.answered[each] + 1}" for each in new}
        await asyncio.gather(
            *(self._producer.send(QUESTIONS, text, lite_topic=each) for each, text in texts.items())
        )

    def take(self, answer: MessageExt) -> None:
        """Note an answer, which is that to the last question of its session, or came before."""
        session, text = str(answer.lite_topic), answer.body.decode()
        turn = self.answered[session]
        if text == f"answer to question {turn}":  # its replica died before it acknowledged the question
            self.repeated += 1
            return
        if text != f"answer to question {turn + 1}":
            raise AssertionError(f"{text!r} in {session} after {turn} answers")
        self.answered[session] += 1
        self.took_ms.append((time.monotonic() - self._asked.pop(session)) * 1000)

    async def open_late(self) -> int:
        """Open all sessions again whose replica does not answer; return their number."""
        now = time.monotonic()
        silent = {self.owner[each] for each, at in self._asked.items() if now - at > PATIENCE_S}
        late = [each for each, owner in self.owner.items() if owner in silent]
        self._asked |= dict.fromkeys(self._asked.keys() & set(late), now)
        await self.open(late)
        return len(late)


async def chat(sessions: list[str], nameservers: str) -> None:
    """Run all sessions, kill a replica in the middle, and print how long the answers took."""
    agents = serve.run(Agent.bind(nameservers), name="chat", route_prefix=None)
    async with Producer(nameservers) as producer, LiteConsumer(nameservers, USERS, ANSWERS) as answers:
        users, begin = Users(sessions, agents, producer), time.monotonic()
        await users.open(sessions)
        opened_s, begin = time.monotonic() - begin, time.monotonic()
        victim = users.owner[sessions[0]]
        replicas = len(set(users.owner.values()))
        print(f"{len(sessions):,} sessions opened on {replicas} replicas in {opened_s:.1f} s")
        while users.are_waiting:
            await users.ask()
            found = await answers.receive(max_messages=32, timeout_ms=1_000)
            await answers.ack(found)
            for each in found:
                users.take(each)
            if victim and len(users.took_ms) > len(sessions):
                os.kill(victim, signal.SIGKILL)
                victim = 0
            if late := await users.open_late():
                print(f"{late:,} sessions opened again after {time.monotonic() - begin:.1f} s")
    cuts, count = quantiles(users.took_ms, n=100), len(users.took_ms)
    print(f"{count:,} answers in {time.monotonic() - begin:.1f} s, in order, {users.repeated} of them twice")
    print(f"from question to answer: p50 {cuts[49]:,.0f} ms, p99 {cuts[98]:,.0f} ms")


async def main(count: int = 10_000, nameservers: str = "127.0.0.1:9876") -> None:
    """Run the example."""
    await prepare(nameservers)
    serve.start(proxy_location="Disabled")
    try:
        await chat([f"session-{number}" for number in range(count)], nameservers)
    finally:
        serve.delete("chat")


if __name__ == "__main__":
    asyncio.run(main(*(int(each) if each.isdigit() else each for each in sys.argv[1:])))
