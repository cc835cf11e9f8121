"""Actors on other cores, called as plain async code.

    python examples/hello.py

You should see four greetings, each from a process of its own, then one error from afar.
"""

import os

import trio

import asyncparl


@asyncparl.remote_class
class Greeter:
    def __init__(self, language: str) -> None:
        self.language = language

    def greet(self, name: str) -> str:
        words = {"en": "Hello", "fr": "Bonjour", "de": "Hallo", "it": "Ciao"}
        return f"{words[self.language]} {name}, from process {os.getpid()}"

    def count(self, n: int):
        yield from range(n)


async def main() -> None:
    async with asyncparl.connect():
        greeters = [Greeter(language) for language in ("en", "fr", "de", "it")]
        for greeting in await asyncparl.gather(greeter.greet("world") for greeter in greeters):
            print(greeting)
        print("counted", [i async for i in greeters[0].count(3)])
        try:
            await Greeter("xx").greet("world")
        except KeyError as error:
            print(f"KeyError: {error}; {error.__notes__[0]}")


if __name__ == "__main__":
    trio.run(main)
