"""Ways to spoil a right reply of a client to a round: records that are missing or of another kind, arrays that are not
what they claim, headers that are wrong.

Each is a function of the reply's records by name, and returns others. SPOILS cannot be taken in; HARMLESS can.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

Records = dict[str, Any]
Spoil = Callable[[Records], Records]

KINDS = {
    "end": ArrayRecord,
    "buffers": ArrayRecord,
    "direction": ArrayRecord,
    "lr_sum": MetricRecord,
    "metrics": MetricRecord,
    "stgt": ConfigRecord,
}
NEEDED = [name for name in KINDS if name != "direction"]
UNKNOWN = "unknown.weight"  # the name of nothing


def is_whole(records: Records) -> bool:
    """Is it a reply with a model, and not a client's word that it could not?"""
    return "end" in records


# -- records and their numbers -----------------------------------------------------------------------------------------


def without(name: str) -> Spoil:
    return lambda records: {key: record for key, record in records.items() if key != name}


def replaced(name: str, record: Any) -> Spoil:
    return lambda records: {**records, name: record}


def changed(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Spoil:
    """A record of the same kind with other entries."""
    return lambda records: {**records, name: KINDS[name](change(dict(records[name])))}


def header(**values: Any) -> Spoil:
    """Another header; None takes an entry out."""
    return changed("stgt", lambda header: {key: value for key, value in (header | values).items() if value is not None})


def stepsizes(value: Any) -> Spoil:
    return changed("lr_sum", lambda numbers: dict.fromkeys(numbers, value))


# -- arrays ------------------------------------------------------------------------------------------------------------


def first_of(arrays: dict[str, Array], change: Callable[[Array], Array]) -> dict[str, Array]:
    name = min(arrays)
    return {**arrays, name: change(arrays[name])}


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    """One array of a record made another; of "direction", which plain SGD does not send, the model's."""
    return of_model(name, lambda arrays: first_of(arrays, lambda one: Array(change(one.numpy()))))


def content(change: Callable[[bytes], bytes]) -> Spoil:
    """The bytes of one array of the model made others."""
    return changed("end", lambda arrays: first_of(arrays, lambda one: with_bytes(one, change(one.data))))


def with_bytes(one: Array, data: bytes) -> Array:
    return Array(dtype=one.dtype, shape=one.shape, stype=one.stype, data=data)


def of_model(name: str, change: Callable[[dict[str, Array]], dict[str, Array]]) -> Spoil:
    """A record of arrays made of the model's names."""
    return lambda records: {**records, name: ArrayRecord(change(dict(records.get(name) or records["end"])))}


def lacking_one(entries: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in entries.items() if name != min(entries)}


def with_one_more(arrays: dict[str, Array]) -> dict[str, Array]:
    return {**arrays, UNKNOWN: Array(np.zeros(2))}


def renamed(arrays: dict[str, Array]) -> dict[str, Array]:
    return {UNKNOWN: arrays[min(arrays)], **lacking_one(arrays)}


def holding(number: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(value: np.ndarray) -> np.ndarray:
        found = value.copy()
        found.reshape(-1)[-1] = number
        return found

    return change


def other_precision(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32 if value.dtype == np.float64 else np.float64)


def as_npz(data: bytes) -> bytes:
    file = io.BytesIO()
    np.savez(file, np.load(io.BytesIO(data)))
    return file.getvalue()


def header_only(shape: tuple[int, ...]) -> bytes:
    """An array file that promises more than it holds."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue()


def as_objects(data: bytes) -> bytes:
    """An array of Python objects, whose loading would run code."""
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}, None], dtype=object))
    return file.getvalue()


SPOILS: dict[str, Spoil] = {
    **{f"no {name}": without(name) for name in NEEDED},
    **{
        f"{name} is a {kind.__name__}": replaced(name, kind())
        for name, right in KINDS.items()
        for kind in (ArrayRecord, MetricRecord, ConfigRecord)
        if kind is not right
    },
    **{f"{name} lacks an array": of_model(name, lacking_one) for name in ("end", "direction")},
    **{f"{name} has one more": of_model(name, with_one_more) for name in ("end", "direction")},
    **{f"{name} has another name": of_model(name, renamed) for name in ("end", "direction")},
    **{f"{name} is empty": replaced(name, ArrayRecord()) for name in ("end", "direction")},
    **{
        f"{name} has {what}": array(name, change)
        for name in ("end", "direction")
        for what, change in {
            "another shape": lambda value: np.append(value.reshape(-1), 0.0).astype(value.dtype),
            "one number": lambda value: value.reshape(-1)[:1].reshape(()),
            "an axis more": lambda value: value[None],
            "another precision": other_precision,
            "whole numbers": lambda value: value.astype(np.int64),
            "complex numbers": lambda value: value.astype(np.complex128),
            "truth values": lambda value: value.astype(bool),
            "words": lambda value: value.astype(str),
            "the other byte order": lambda value: value.astype(value.dtype.newbyteorder()),
            "a NaN": holding(np.nan),
            "an infinity": holding(np.inf),
            "minus infinity": holding(-np.inf),
        }.items()
    },
    "an array's bytes are cut off": content(lambda data: data[:-3]),
    "an array's header is cut off": content(lambda data: data[:20]),
    "an array has no bytes": content(lambda data: b""),
    "an array is noise": content(lambda data: np.random.default_rng(0).bytes(len(data))),
    "an array is an archive": content(as_npz),
    "an archive is cut off": content(lambda data: as_npz(data)[:-30]),
    "an array is of objects": content(as_objects),
    "an array promises too much": content(lambda data: header_only((10**6, 10**7))),
    "an array promises more than there is": content(lambda data: header_only((2**62, 2**62))),
    "an array is not NumPy's": changed(
        "end", lambda arrays: first_of(arrays, lambda one: Array(one.dtype, one.shape, "pickle", one.data))
    ),
    "a buffer is not the model's": replaced("buffers", ArrayRecord({UNKNOWN: Array(np.zeros(2))})),
    "a parameter is a buffer": lambda records: {**records, "buffers": records["end"]},
    "no stepsize": changed("lr_sum", lacking_one),
    "a stepsize of another name": changed("lr_sum", lambda numbers: {UNKNOWN: 0.1}),
    "a stepsize of 0": stepsizes(0),
    "a negative stepsize": stepsizes(-0.1),
    "a stepsize that is NaN": stepsizes(np.nan),
    "an infinite stepsize": stepsizes(np.inf),
    "a stepsize next to 0": lambda records: stepsizes(5e-324)(without("direction")(records)),
    "a list of stepsizes": stepsizes([0.1, 0.1]),
    "an empty list of stepsizes": stepsizes([]),
    "no partition": header(partition=None),
    "another partition": header(partition=10**6),
    "a negative partition": header(partition=-1),
    "a partition in words": header(partition="0"),
    "a list of partitions": header(partition=[0, 1]),
    "no round": header(round=None),
    "an earlier round": changed("stgt", lambda header: {**header, "round": header["round"] - 1}),
    "a later round": changed("stgt", lambda header: {**header, "round": header["round"] + 1}),
    "a round in words": changed("stgt", lambda header: {**header, "round": str(header["round"])}),
    "a round in bytes": header(round=b"\x00\xff"),
    "nothing header of ties": header(tied=None),
    "ties in one word": header(tied="a=b"),
    "ties in numbers": header(tied=[1, 2]),
    "ties in bytes": header(tied=[b"a=b"]),
    "ties without a second name": header(tied=["a"]),
    "ties of nothing": header(tied=[f"{UNKNOWN}={UNKNOWN}.too"]),
    "a tie of nothing to a parameter": lambda records: header(tied=[f"{UNKNOWN}={min(records['end'])}"])(records),
    "a tie of a parameter to itself": lambda records: header(tied=[f"{min(records['end'])}={min(records['end'])}"])(
        records
    ),
    "a fault in bytes": header(fault=b"\xff"),
}  # fmt: skip

HARMLESS: dict[str, Spoil] = {
    "a record more": replaced("of my own", ConfigRecord({"a": 1})),
    "an array more": replaced("untrained", ArrayRecord({UNKNOWN: Array(np.zeros(2))})),
    "more in the header": header(version="99", lost=False, kind="Crashed"),
    "a digest in numbers": header(untrained=3),
    "no digest": header(untrained=None),
    "a digest in bytes": header(untrained=b"\xff"),
    "no metrics": replaced("metrics", MetricRecord()),
    "a loss that is NaN": replaced("metrics", MetricRecord({"loss": np.nan, "steps": 1})),
    "an infinite loss": replaced("metrics", MetricRecord({"loss": np.inf, "num-examples": np.inf})),
    "a loss of minus infinity": replaced("metrics", MetricRecord({"loss": -np.inf, "num-examples": -1})),
    "lists of losses": replaced("metrics", MetricRecord({"loss": [1.0, 2.0], "steps": []})),
    "a large whole number": replaced("metrics", MetricRecord({"loss": 2**63 - 1, "num-examples": 0})),
    "a stepsize more": changed("lr_sum", lambda numbers: {**numbers, UNKNOWN: -1.0}),
    "another order in memory": changed(
        "end", lambda arrays: {name: Array(np.asfortranarray(one.numpy())) for name, one in arrays.items()}
    ),
}
