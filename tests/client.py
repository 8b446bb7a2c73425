"""A client of a service, by docs/protocol.md alone. It checks each answer against the schema.

client.py SOCKET SCHEMA: prints the names of the verbs that it has asked for.
"""

import json
import socket
import struct
import sys


class Client:
    def __init__(self, path, schema):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")
        self.schema = schema
        self.id = 0
        self.ops = None
        self.asked = []

    def ask(self, op, **arguments):
        verb = self.schema["verbs"][op]
        assert self.ops is None or verb["announced_as"] in self.ops, op
        check(self.schema, verb["request"], arguments, op)
        self.id += 1
        line = json.dumps({"v": 1, "id": self.id, "op": op, **arguments})
        self.socket.sendall(line.encode() + b"\n")
        answer = json.loads(self.file.readline())
        assert (answer["v"], answer["id"]) == (1, self.id), answer
        if "error" in answer:
            check(self.schema, self.schema["lines"]["error"], answer["error"], op)
            raise Refused(answer["error"])
        check(self.schema, verb["answer"], answer["ok"], op)
        self.asked.append(op)
        return answer["ok"]

    def parts(self, op, **arguments):
        """All parts of an answer."""
        start = 0
        while True:
            part = self.ask(op, **{**arguments, "from": start})
            yield part
            following = part.get("next")
            if following is None:
                return
            assert following > start, part
            start = following

    def frames(self):
        """The frames of a trace, for ever."""
        while True:
            (length,) = struct.unpack("<I", self.file.read(4))
            frame = self.file.read(length)
            yield frame[0], frame[1:]


class Refused(Exception):
    pass


def check(schema, rule, value, place):
    """Fails where a value is not as the schema has it; the part of JSON Schema that ours uses."""
    if rule is True or rule == {}:
        return
    if "$ref" in rule:
        name = rule["$ref"].removeprefix("#/$defs/")
        check(schema, schema["$defs"][name], value, place)
    for some in ("anyOf", "oneOf"):
        if some in rule and not any(fits(schema, one, value, place) for one in rule[some]):
            raise AssertionError(f"{place}: {value!r} is none of {rule[some]}")
    for one in rule.get("allOf", []):
        check(schema, one, value, place)
    if "enum" in rule:
        assert value in rule["enum"], f"{place}: {value!r}"
    if "const" in rule:
        assert value == rule["const"], f"{place}: {value!r}"
    kinds = rule.get("type")
    if kinds is not None:
        kinds = [kinds] if isinstance(kinds, str) else kinds
        assert any(is_kind(kind, value) for kind in kinds), f"{place}: {value!r} is no {kinds}"
    if isinstance(value, dict):
        for name in rule.get("required", []):
            assert name in value, f"{place} has no {name}: {value}"
        for name, of in rule.get("properties", {}).items():
            if name in value:
                check(schema, of, value[name], f"{place}.{name}")
    if isinstance(value, list):
        for n, one in enumerate(value):
            before = rule.get("prefixItems", [])
            of = before[n] if n < len(before) else rule.get("items", True)
            check(schema, of, one, f"{place}[{n}]")
    if "minimum" in rule and isinstance(value, (int, float)):
        assert value >= rule["minimum"], f"{place}: {value}"


def fits(schema, rule, value, place):
    try:
        check(schema, rule, value, place)
    except AssertionError:
        return False
    return True


def is_kind(kind, value):
    if kind in ("integer", "number"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, kinds[kind])


def records(payload):
    """Of a frame of records, each one's time, probe and values."""
    at = 12
    while at < len(payload):
        length, version, _, probe, tsc, _, _, count, _ = struct.unpack_from("<HBBIQQIHH", payload, at)
        values, place = [], at + 32
        for _ in range(count):
            tag = payload[place]
            place += 1
            if tag in (1, 2, 3):
                values += struct.unpack_from("<" + " qQd"[tag], payload, place)
                place += 8
            elif tag == 4:
                values.append(payload[place] == 1)
                place += 1
            elif tag in (5, 6):
                (size,) = struct.unpack_from("<H", payload, place)
                values.append(payload[place + 2 : place + 2 + size].decode())
                place += 2 + size
            else:
                values.append(None)
        assert version == 1 and length % 8 == 0 and place <= at + length
        yield tsc, probe, values
        at += length


def main():
    with open(sys.argv[2], encoding="utf-8") as file:
        schema = json.load(file)
    client = Client(sys.argv[1], schema)
    client.ops = client.ask("hello", client="a client in Python", notices=True)["ops"]

    keys = client.ask("keys")["keys"]
    probes = [key for key in keys if key["kind"] == "probe"]
    assert probes, keys
    changed = client.ask("on", glob=probes[0]["name"])
    assert probes[0]["name"] in changed["matched"], changed
    client.ask("off", glob=probes[0]["name"])
    client.ask("reset", glob=probes[0]["name"])
    try:
        client.ask("on", glob="no.such.key")
        raise AssertionError("a key that is not there went on")
    except Refused as why:
        assert why.args[0]["code"] == "no-match", why

    names = [event["name"] for event in client.ask("events")["events"] if "unavailable" not in event]
    client.ask("count", events=names[:2])
    client.ask("waits", places=True, exemplars=True)
    client.ask("objectives", objectives=["GET *: 99% < 250ms"])
    before = client.ask("stat")
    after = client.ask("stat")
    assert after["mono_ns"] > before["mono_ns"]
    client.ask("doctor")
    client.ask("slots")
    assert [one["client"] for one in client.ask("clients")["clients"] if one.get("asks")] == ["a client in Python"]
    list(client.parts("tasks"))
    list(client.parts("places"))
    list(client.parts("wake-tasks"))
    client.ask("cancelled")
    client.ask("locks")
    assert isinstance(client.ask("lock-report", stacks=True)["waiters"], list)
    client.ask("spawn-sites")
    try:
        number = client.ask("profile", hz=99)["number"]
        list(client.parts("profile-report", number=number))
    except Refused as why:
        assert why.args[0]["code"] == "no-profile", why
    client.ask("long-polls", threshold_us=10_000)
    client.ask("long-poll-reports")
    client.ask("record")
    client.ask("triggers")
    added = client.ask("trigger-add", rules="panic")["triggers"]
    client.ask("trigger-remove", number=max(row["number"] for row in added))
    try:
        number = client.ask("watch", addr=0, len=8, access="w")["number"]
        client.ask("watch-report", number=number)
    except Refused as why:
        assert why.args[0]["code"] in ("no-watching", "no-slot", "busy"), why

    tracer = Client(sys.argv[1], schema)
    tracer.ops = tracer.ask("hello", client="a client in Python")["ops"]
    tracing = tracer.ask("trace", glob="*")
    known = {probe["id"]: probe for probe in tracing["probes"]}
    for kind, payload in tracer.frames():
        if kind == 1:
            check(schema, {"$ref": "#/$defs/Note"}, json.loads(payload), "note")
        elif kind == 2:
            for tsc, probe, values in records(payload):
                assert tsc > 0 and len(values) <= max(len(known[probe]["fields"]), 1), (probe, values)
            break
    client.ask("sleep")
    try:
        client.ask("stat")
        raise AssertionError("it answers asleep")
    except Refused as why:
        assert why.args[0]["code"] == "asleep", why
    assert client.ask("wake")["was"]
    print(" ".join(sorted(set(client.asked + tracer.asked))))


main()
