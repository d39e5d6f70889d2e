"""Prompts of different kinds for benchmarks of drafting: ten of all sorts, and some for copying drafts."""

from __future__ import annotations

HARBOUR = (
    "The harbour of the old town was built in the twelfth century, when fishermen from the islands settled at the "
    "mouth of the river. For three hundred years they lived from herring, until the shoals moved north and the nets "
    "stayed empty. The town then turned to trade: salt from the south, timber and furs from the north, and later cloth "
    "from its own weavers. A fire in 1684 destroyed two thirds of the houses, and the council ordered that new ones be "
    "built of brick. Most of these brick houses still stand today. In the nineteenth century the railway came, and "
    "with it the first visitors, who bathed in the sea and walked along the new promenade. The harbour was deepened "
    "twice, but large ships went to the bigger port forty kilometres away. After the war the shipyard was the largest "
    "employer; it closed in 1983, and one in five people lost their work. Since then the town has lived mostly from "
    "tourism. A museum in the former shipyard shows how wooden boats were built, and every summer a regatta brings "
    "thousands of guests. Young people, however, leave for the cities, because rents have risen and jobs are seasonal."
)
INVENTORY = '''
class Inventory:
    """Items of a shop by name, with their number and price."""

    def __init__(self):
        self.items = {}

    def add(self, name, number, price):
        if name in self.items:
            self.items[name]["number"] += number
            self.items[name]["price"] = price
        else:
            self.items[name] = {"number": number, "price": price}

    def remove(self, name, number):
        if name not in self.items:
            raise KeyError(name)
        if self.items[name]["number"] < number:
            raise ValueError("not enough of " + name)
        self.items[name]["number"] -= number

    def value(self):
        return sum(item["number"] * item["price"] for item in self.items.values())
'''
PROMPTS = {
    "code": "Write a quick-sort implementation in Python, with type hints and a docstring.",
    "bug": "Find the bug in this function and give the corrected version:\n\ndef mean(values):\n    total = 0\n"
    "    for value in values:\n        total =+ value\n    return total / len(values)\n",
    "chat": "What is the capital of France, and why do people like to visit it?",
    "story": "Write the beginning of a short story about a lighthouse keeper who finds a letter in a bottle.",
    "translation": "Translate into German: The train to the coast leaves at half past seven, and the tickets are sold "
    "at the small kiosk beside the station's main entrance. Bring warm clothes, because the evenings are cold.",
    "list": "List the planets of the solar system, one a line, each with its diameter in kilometres.",
    "arithmetic": "A shop sells pens at 3 euros and notebooks at 5 euros. Ann buys 4 pens and 3 notebooks and pays "
    "with a 50 euro note. How much change does she get? Explain step by step.",
    "json": "Give a JSON array of five fictional employees, each with name, age, department and salary.",
    "explanation": "Explain in simple words how a refrigerator keeps food cold.",
    "summary": f"Summarise this text in three sentences:\n\n{HARBOUR}",
}
# Where text is copied from the prompt, which is what prompt lookup is for.
COPYING = {
    "edit": "In this class rename the method `value` to `total_value`, and give the whole class again, without an "
    f"explanation:\n{INVENTORY}",
    "quotes": f"Give the three most important sentences of this text, word for word:\n\n{HARBOUR}",
}
