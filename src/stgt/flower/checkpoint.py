"""The server's state in files: the last two rounds, with a copy of each client's state.

NAME.safetensors                the state after the last round
NAME.previous.safetensors       the state after the counted round before it, in case that file is damaged
NAME.clients/3-0f….safetensors  the copy of client 3's state, named by the hash of its last accepted reply; a round
                                writes the files of its own clients only
NAME.history.json               the outcome of each round
"""

from __future__ import annotations

import os
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from stgt._internal import container
from stgt._internal.checks import InputError
from stgt._internal.digest import digest
from stgt._internal.serialize import to_plain
from stgt.flower.client_state import NO_REPLY
from stgt.flower.protocol import UNTRAINED, Arrays, View, flatten, unflatten
from stgt.flower.server_state import ServerState
from stgt.simulator.serialize import serialize

KIND, COPY = "state of a Flower server", "copy of a Flower client's state"


class ServerCheckpoint:
    """The files in which the server's state is stored after every round.

    Args:
        path: of the file.
        seed, weights: of the run.
    """

    def __init__(self, path: Path | str, seed: int, weights: str):
        self.path, self.seed, self.weights = Path(path).expanduser(), seed, weights
        self.previous = self.path.with_name(f"{self.path.stem}.previous{self.path.suffix}")
        self.history = self.path.with_name(f"{self.path.stem}.history.json")
        self.damaged = self.path.with_name(f"{self.path.stem}.damaged{self.path.suffix}")
        self.folder = self.path.with_name(f"{self.path.stem}.clients")
        self._needed: set[Path] = set()  # the clients' files that the last checkpoint refers to

    def exists(self) -> bool:
        return self.path.exists() or self.previous.exists()

    def save(self, state: ServerState, done: int, mean_examples: float, counted: bool) -> None:
        """Writes everything that the next round depends on.

        Args:
            state: the server's state.
            done: the number of completed rounds.
            mean_examples: the number of examples that has the weight 1.
            counted: did the last round count? If not, the state did not change, and the previous file is kept.
        """
        for client, client_state in state.client_states.items():
            path = self._client_file(client, state.accepted[client])
            if not path.exists():
                container.write(path, COPY, flatten(client_state), None, private=True)
        views = {f"{r}.{key}": one for r, view in state.views.items() for key, one in view.items()}
        arrays = flatten({UNTRAINED: state.untrained, **views})
        note = {
            **self._identity(state),
            "done": done,
            "mean_examples": mean_examples,
            "usual": state.usual,
            "view_round": list(state.view_round.values()),
            "accepted": list(state.accepted.values()),
            "trained": None if state.trained is None else sorted(state.trained),
            "tied": state.tied,
        }
        if counted and self.path.exists():
            os.replace(self.path, self.previous)
        container.write(self.path, KIND, arrays, note, private=True)
        if counted:
            self._remove_unneeded(state)

    def load(self, state: ServerState) -> tuple[int, float]:
        """Restores a new state from the files. Returns the number of completed rounds and the mean of examples."""
        errors = []
        for path in filter(Path.exists, (self.path, self.previous)):
            try:
                arrays, note = container.read(path, KIND)
                client_states = self._read_clients(note["accepted"])
            except container.BadFile as error:
                errors.append(str(error))
                continue
            self._fill(state, path, arrays, note, client_states)
            if errors:
                log(WARNING, "%s Continuing from %s, an earlier round.", errors[0], path)
                os.replace(self.path, self.damaged)  # otherwise the next save would move it over the good file
            self._needed = {self._client_file(client, one) for client, one in state.accepted.items()}
            return note["done"], note["mean_examples"]
        raise ValueError(errors[0])

    def _fill(
        self, state: ServerState, path: Path, arrays: Arrays, note: dict[str, Any], client_states: dict[int, View]
    ) -> None:
        for key, value in self._identity(state).items():
            if note.get(key) != value:
                raise InputError(
                    "checkpoint", path, f" has another {key}: give another file, or the {key} that it was made with."
                )
        view = unflatten(arrays)
        state.views, state.untrained = {}, view.pop(UNTRAINED, {})
        for entry, one in view.items():
            r, key = entry.split(".", 1)
            state.views.setdefault(int(r), {})[key] = one
        state.view_round = dict(enumerate(note["view_round"]))
        state.accepted = dict(enumerate(note["accepted"]))
        state.tied = note["tied"]
        state.trained = None if note["trained"] is None else frozenset(note["trained"])
        state.changed = dict.fromkeys(state.untrained, 0)
        state.client_states, state.usual = client_states, note["usual"]
        state.resumed()

    def _client_file(self, client: int, accepted: str) -> Path:
        return self.folder / f"{client}-{accepted[:16]}.safetensors"

    def _read_clients(self, accepted: list[str]) -> dict[int, View]:
        found: dict[int, View] = {}
        for client, one in enumerate(accepted):
            if one != NO_REPLY:
                arrays, _ = container.read(self._client_file(client, one), COPY)
                found[client] = unflatten(arrays)
        return found

    def _remove_unneeded(self, state: ServerState) -> None:
        """Removes the clients' files that neither of the two stored rounds refers to."""
        needed = {self._client_file(client, one) for client, one in state.accepted.items()}
        for path in set(self.folder.glob("*.safetensors")) - needed - self._needed:
            path.unlink(missing_ok=True)
        self._needed = needed

    def _identity(self, state: ServerState) -> dict[str, Any]:
        """What must be the same in a run that continues from the files."""
        return {
            "algorithm": to_plain(state.method.algorithm),
            "topology": serialize(state.topology),
            "seed": self.seed,
            "weights": self.weights,
            "model": digest(state.specs),
        }
