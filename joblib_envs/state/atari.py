"""Atari games: the emulator's state travels each time, the emulator itself is used again.

The Arcade Learning Environment (ALE) can copy its state, but not all that a game shows or does
next is in the copy. The frame on the screen isn't, so it travels beside it. What the video chip
derives from its registers isn't, nor what is in its two buffers; both are put right in the
emulator that takes the state (``_Native.take_state``). What can't be put right is refused.
Read in ale-py 0.12.1; its pitfall2 alone keeps a clock of its sound chip that is rounded each
time, which is heard and not seen.

To load a game takes 95 ms, so that emulators are lent, and taken back once nobody has them.
"""

from __future__ import annotations

import functools
import pickle
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import ale_py
import numpy as np
import numpy.typing as npt
from ale_py import ALEInterface, roms

from joblib_envs.gil import gil_is_enabled
from joblib_envs.state.cargo import Departure, Lent, lend, take_spare

__all__ = ["reduce_atari_env"]

Pixels: TypeAlias = npt.NDArray[np.uint8]

_BOOLS = (
    *("color_averaging", "display_screen", "restricted_action_set", "run_length_encoding", "send_rgb", "sound"),
    *("sound_obs", "truncate_on_loss_of_life", "fast_tia_update"),
)
_INTS = (
    *("frame_skip", "max_num_frames", "paddle_min", "paddle_max", "reward_min", "reward_max", "system_random_seed"),
    *("fragsize", "max_turn_time"),
)
_STRINGS = ("cpu", "palette", "record_screen_dir", "record_sound_filename")
_FLOATS = ("repeat_action_probability",)
"""What decides how a game is set up, beside the game, the mode and the frames of an episode."""

_MOST_LINES = 342
"""ALE ends a frame that has more, which NTSC and PAL don't."""
_FIRST_FRAMES = 4
_TRIED_TURNS = 300
_TURNS_OF_AN_ACTION = 5
_BYTES_OF_AN_EMULATOR = 2 * 2**20


@dataclass(frozen=True)
class _Setup:
    """How an emulator is set up; the settings are those that it has once it has loaded the game."""

    game: str
    max_num_frames_per_episode: int
    settings: tuple[Any, ...]
    mode: int


def reduce_atari_env(env: Any, departure: Departure) -> tuple[Any, ...]:
    """Keep all attributes of an Atari environment, and the state of its emulator.

    Raises:
        pickle.PicklingError: The emulator can't be given this state anywhere else.
    """
    from joblib_envs.state.pickling import attributes_of, blank, set_attributes

    departure.packages.add("ale-py")
    attributes, slots = attributes_of(env)
    emulator: Any = attributes.get("ale")
    _require_what_a_state_holds(env, emulator)
    carried = _Carried(emulator)
    return blank, (type(env),), ({**attributes, "ale": carried}, slots), None, None, set_attributes


def _require_what_a_state_holds(env: Any, emulator: Any) -> None:
    """Refuse what ALE keeps beside its state and doesn't show."""
    if type(emulator) not in (ALEInterface, _Emulator):
        raise _refusal(f"its ale is a {type(emulator).__name__}", "only an ALEInterface's state is known")
    made_with = getattr(env, "_ezpickle_kwargs", {})
    for name, read in (
        ("repeat_action_probability", emulator.getFloat),
        ("max_num_frames_per_episode", emulator.getInt),
    ):
        # A setting takes effect when the game is loaded, which can't be seen from outside.
        now, made = read(name), made_with.get(name, read(name)) or 0
        if np.float32(made) != np.float32(now):
            raise _refusal(
                f"it was made with {name}={made:g}, and {now:g} was set since",
                "which of the two is in effect can't be told",
                "make it with the value that it shall have",
            )
    sticky = emulator.getFloat("repeat_action_probability")
    if sticky > 0:
        raise _refusal(
            f"it has sticky actions (repeat_action_probability={sticky:g})",
            "ALE's state doesn't hold the last action, which the next step may repeat",
            "make it with repeat_action_probability=0, as the ids ending in NoFrameskip-v4 and Deterministic-v4 "
            "are, or use state_method='replay' or execution='actors'",
        )
    if getattr(env, "render_mode", None) == "human" or any(map(emulator.getBool, ("display_screen", "sound"))):
        raise _refusal("it draws on a screen", "a window can't leave its process", "use render_mode='rgb_array'")
    for name, why in (("sound_obs", "the sound of the last frame"), ("color_averaging", "the frame before the last")):
        if emulator.getBool(name):
            raise _refusal(f"it has {name}=True", f"ALE's state doesn't hold {why}")


def _refusal(found: str, why: str, instead: str = "use state_method='replay' or execution='actors'") -> Exception:
    return pickle.PicklingError(f"this Atari environment's state can't be kept: {found}, and {why}; {instead}")


class _Carried:
    """Stands for an emulator in a pickle."""

    def __init__(self, emulator: ALEInterface) -> None:
        state = emulator.cloneState(include_rng=True)
        self._setup = _setup_of(emulator, state.getCurrentMode())
        self._state = state.serialize()
        self._seed = emulator.getInt("random_seed")
        frame = emulator.frame if isinstance(emulator, _Emulator) else None
        self._frame = _Frame.of(emulator, self._setup) if frame is None else frame
        has_odd_frame = _has_odd_frame(self._state)
        if has_odd_frame and state.getEpisodeFrameNumber() >= _FIRST_FRAMES:
            raise _refusal(
                "the game has drawn no whole frame in its last turn",
                "ALE's state doesn't hold the part that it has",
                "keep its state one step earlier or later, or use state_method='replay' or execution='actors'",
            )
        loaded = emulator.setup if isinstance(emulator, _Emulator) else None
        if loaded is not None and replace(loaded, mode=self._setup.mode) != self._setup:
            raise _refusal(
                f"its settings were changed since it loaded its game ({_difference(self._setup, loaded)})",
                "ALE heeds them when it loads a game",
                "reset it with a seed, which loads its game",
            )
        if has_odd_frame or loaded != self._setup:
            _rehearse(self._setup, self._state, self._frame, once=not has_odd_frame)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_emulator, (self._setup, self._state, self._seed, self._frame)


def _setup_of(emulator: ALEInterface, mode: int) -> _Setup:
    numbers = *map(emulator.getBool, _BOOLS), *map(emulator.getInt, _INTS), *map(emulator.getFloat, _FLOATS)
    settings = (*numbers, *map(emulator.getString, _STRINGS))
    game = _game_of(emulator.getString("rom_file"))
    return _Setup(game, emulator.getInt("max_num_frames_per_episode"), settings, mode)


@functools.cache
def _game_of(path: str) -> str:
    """Return a name that finds the game in another place that Python is installed in; else its path."""
    is_shipped = Path(path).parent == Path(roms.__file__).parent
    return Path(path).stem if is_shipped else str(Path(path).absolute())


def _has_odd_frame(state: bytes) -> bool:
    """Tell whether the game has spent its last turn (25,000 instructions) without the end of a frame, or just after.

    That isn't in the state, but shows in it: the scan lines of a whole frame are counted twice (TIA.cxx).
    """
    start = state.index(b"\x03\0\0\0TIA") + 7
    counted, current = np.frombuffer(state, "<i4", 2, start + 20)
    return bool(counted != current or current > _MOST_LINES)


def _settling(state: bytes) -> bytes:
    """Return a state in which the processor makes the video chip (TIA) work out what it derives from its registers.

    ALE doesn't save which pixels the missiles and the ball cover, nor works it out when it restores a state: games
    that don't place them in each frame show them elsewhere. It does when a register is written, so this state has
    a program in its memory that writes what the registers hold already, and ends the frame before it shows.
    """
    cpu, memory, tia = (state.index(name) + len(name) for name in (b"M6502Low", b"M6532", b"\x03\0\0\0TIA"))
    nusiz0, nusiz1, ctrlpf = (state[tia + 4 * word] for word in (11, 12, 17))
    program = (
        *(0xA9, nusiz0, 0x85, 0x04, 0xA9, nusiz1, 0x85, 0x05, 0xA9, ctrlpf, 0x85, 0x0A),  # LDA #, STA register
        *(0xA9, 0x02, 0x85, 0x00, 0x85, 0x02, 0x85, 0x02, 0xA9, 0x00, 0x85, 0x00),  # VSYNC on, two lines, off
        *(0x4C, 0x98, 0x00),  # JMP to itself
    )
    changed = bytearray(state)
    changed[cpu + 20 : cpu + 24] = (0x80).to_bytes(4, "little")  # the program counter, at the start of the memory
    for place, byte in enumerate(program):
        start = memory + 4 + 4 * place
        changed[start : start + 4] = byte.to_bytes(4, "little")
    return bytes(changed)


def _rehearse(setup: _Setup, state: bytes, frame: _Frame, *, once: bool) -> None:
    """Try whether an emulator can be given the state, before the environment is gone."""
    if once and setup in _rehearsed:
        return
    native = _understudies.pop(setup, None) or _Native(setup)
    if native.emulator.setup != setup:
        raise _refusal(
            f"its emulator has settings other than AtariEnv's ({_difference(setup, native.emulator.setup)})",
            "whether they are in effect can't be told",
        )
    if not native.take_state(state, frame):
        raise _refusal("no other emulator gets to the frame that it shows", "ALE's state doesn't hold it")
    if native.emulator.cloneState(include_rng=True).serialize() != state:
        # So is MiniatureGolf in ale-py 0.12.1, whose counts are saved as truth values.
        raise _refusal(f"ALE restores {setup.game} otherwise than it has saved it", "its rewards would differ")
    if once and native.leaves_frames_undone(state):
        # So does TicTacToe3D while it thinks.
        raise _refusal(f"{setup.game} draws some frames in several turns", "ALE's state doesn't hold their parts")
    if once:
        _rehearsed.add(setup)
    elif len(_understudies) < _MOST_UNDERSTUDIES:
        _understudies[setup] = native


_MOST_UNDERSTUDIES = 4
_understudies: dict[_Setup, _Native] = {}
_rehearsed: set[_Setup] = set()


def _difference(one: _Setup, other: _Setup | None) -> str:
    values = zip((*_BOOLS, *_INTS, *_FLOATS, *_STRINGS), one.settings, other.settings if other else (), strict=False)
    return ", ".join(f"{name}={mine!r}" for name, mine, usual in values if mine != usual) or "mode or frames"


def _restored_emulator(setup: _Setup, state: bytes, seed: int, frame: _Frame) -> ALEInterface:
    native: _Native | None = take_spare(("ale", setup))
    if native is None:
        native = _Native(setup)
    if not native.take_state(state, frame):
        raise pickle.UnpicklingError(f"{setup.game} came to another frame after its reset than it has elsewhere")
    native.emulator.setInt("random_seed", seed)  # which AtariEnv.load_game uses again
    lend(Lent(("ale", setup), native, _BYTES_OF_AN_EMULATOR, _Native.is_free))
    return native.emulator


class _Emulator(ALEInterface):
    """Shows the frame that came with its state until the game has drawn one.

    Attributes:
        frame: That frame, or None.
        setup: How it was set up when it loaded its game; None before.
    """

    __slots__ = ("frame", "setup")

    def __init__(self) -> None:
        super().__init__()
        self.frame: _Frame | None = None
        self.setup: _Setup | None = None

    def act(self, *args: Any, **kwargs: Any) -> int:
        if self.frame is None:
            return super().act(*args, **kwargs)
        had_ended = self.game_over()  # then nothing is drawn
        reward: int = super().act(*args, **kwargs)
        if not had_ended:
            self.frame = None
        return reward

    def reset_game(self) -> None:
        super().reset_game()
        self.frame = None

    def loadROM(self, *args: Any, **kwargs: Any) -> None:  # noqa: N802 -- ALE's name
        super().loadROM(*args, **kwargs)
        self.frame = None
        self.setup = _setup_of(self, self.cloneState().getCurrentMode())

    def setMode(self, mode: int) -> None:  # noqa: N802
        super().setMode(mode)
        if self.setup is not None:
            self.setup = replace(self.setup, mode=mode)

    def getScreen(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        drawn = super().getScreen(*args, **kwargs)
        return drawn if self.frame is None else _shown(self.frame.indices(), drawn, *args, **kwargs)

    def getScreenRGB(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        drawn = super().getScreenRGB(*args, **kwargs)
        return drawn if self.frame is None else _shown(self.frame.coloured(), drawn, *args, **kwargs)

    def getScreenGrayscale(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        drawn = super().getScreenGrayscale(*args, **kwargs)
        return drawn if self.frame is None else _shown(self.frame.gray(), drawn, *args, **kwargs)

    def saveScreenPNG(self, path: str) -> None:  # noqa: N802
        if self.frame is not None:
            raise RuntimeError("ALE can't save a frame that came with a restored state: step first, or getScreenRGB()")
        super().saveScreenPNG(path)


def _shown(frame: Pixels, drawn: Pixels | None, *output: Pixels, **named: Pixels) -> Any:
    """Give the frame in the way that ALE, which has checked it, was asked for its own."""
    if drawn is not None:
        return frame
    for array in (*output, *named.values()):
        array[...] = frame
    return None


class _Native:
    """An emulator that has loaded a game."""

    def __init__(self, setup: _Setup) -> None:
        ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # as AtariEnv does
        self.emulator = _Emulator()
        self._setup = setup
        self.emulator.setFloat("repeat_action_probability", 0.0)
        self.emulator.setInt("max_num_frames_per_episode", setup.max_num_frames_per_episode)
        self.emulator.loadROM(setup.game if Path(setup.game).is_absolute() else roms.get_rom_path(setup.game))
        if self.emulator.setup is not None and self.emulator.setup.mode != setup.mode:
            self.emulator.setMode(setup.mode)
            self.emulator.reset_game()  # which tells the game's rules its mode
        self._start = self.emulator.cloneState(include_rng=True)

    def take_state(self, state: bytes, frame: _Frame) -> bool:
        """Make this emulator one that has the state, whatever it did before; False where that fails."""
        wanted, emulator = ale_py.ALEState(state), self.emulator
        emulator.frame = None
        # ALE draws frames into two buffers by turns, and some games don't draw all of each: what is in
        # the buffers shows in the next frames. Leave there what the environment has there, or will have.
        is_ready = wanted.getEpisodeFrameNumber() < _FIRST_FRAMES and self._follow_a_reset(wanted, state, frame)
        if not is_ready:
            if _has_odd_frame(state):
                return False
            emulator.restoreState(wanted)
            if emulator.game_over():  # then nothing is drawn
                emulator.restoreState(self._start)
            self._finish_a_frame()
        if not _has_odd_frame(state):
            settling = ale_py.ALEState(_settling(state))
            for _ in range(2):  # by which the buffers change their places twice
                emulator.restoreState(settling)
                emulator.act(0)
        emulator.restoreState(wanted)
        emulator.frame = frame
        return True

    def _follow_a_reset(self, wanted: ale_py.ALEState, state: bytes, frame: _Frame) -> bool:
        """Get to the same frame after a reset: Q*bert and Tetris go on to draw into it, others show its rest."""
        emulator = self.emulator
        emulator.restoreState(self._start)
        emulator.reset_game()
        for _ in range(wanted.getEpisodeFrameNumber()):
            emulator.act(0)
        is_as_odd = _has_odd_frame(emulator.cloneState().serialize()) == _has_odd_frame(state)
        return is_as_odd and bool((emulator.getScreen() == frame.indices()).all())

    def _finish_a_frame(self) -> None:
        for _ in range(2):
            self.emulator.act(0)

    def leaves_frames_undone(self, state: bytes) -> bool:
        """Play for a while, from the start and the state, and tell whether the game thinks for longer than a frame."""
        emulator = self.emulator
        actions = emulator.getMinimalActionSet()
        for start in (self._start, ale_py.ALEState(state)):
            emulator.restoreState(start)
            self._finish_a_frame()
            self._finish_a_frame()
            for turn in range(_TRIED_TURNS):
                emulator.act(actions[turn // _TURNS_OF_AN_ACTION % len(actions)])
                if _has_odd_frame(emulator.cloneState().serialize()):
                    return True
        return False

    def is_free(self) -> bool:
        """Tell whether nobody else has the emulator, and nobody has set it up otherwise."""
        if not _counts_are_exact or self.reference_count() != _count_when_new():
            return False
        setup = self.emulator.setup
        return setup == self._setup and _setup_of(self.emulator, self._setup.mode) == setup

    def reference_count(self) -> int:
        """Count the references to the emulator."""
        return sys.getrefcount(self.emulator)


_counts_are_exact = gil_is_enabled()


@functools.cache
def _count_when_new() -> int:
    native = object.__new__(_Native)
    native.emulator = _Emulator()
    return native.reference_count()


@dataclass(frozen=True)
class _Palette:
    """The colours of the indices that a game has shown so far."""

    indices: bytes
    table: Pixels
    packed: bytes

    def with_colours_of(self, emulator: ALEInterface, screen: Pixels) -> _Palette:
        """Look up the colours of a screen."""
        table = self.table.copy()
        table[screen, :3] = emulator.getScreenRGB()
        table[screen, 3] = emulator.getScreenGrayscale()
        return _Palette(self.indices + np.unique(screen).tobytes(), table, zlib.compress(table.tobytes(), 1))


_no_palette = _Palette(b"", np.zeros((256, 4), np.uint8), b"")
_palettes: dict[_Setup, _Palette] = {}


@dataclass(frozen=True)
class _Frame:
    """A screen: of each row what differs from the row above, compressed, and the colours of the indices."""

    packed: bytes
    shape: tuple[int, int]
    palette: bytes

    @staticmethod
    def of(emulator: ALEInterface, setup: _Setup) -> _Frame:
        """Keep what an emulator shows."""
        screen = emulator.getScreen()
        palette = _palettes.get(setup, _no_palette)
        if screen.tobytes().translate(None, palette.indices):
            palette = _palettes[setup] = palette.with_colours_of(emulator, screen)
        rows = screen.copy()
        rows[1:] ^= screen[:-1]
        return _Frame(zlib.compress(rows.tobytes(), 1), screen.shape, palette.packed)

    def indices(self) -> Pixels:
        """Return the screen as ALE has it."""
        rows = np.frombuffer(zlib.decompress(self.packed), np.uint8).reshape(self.shape)
        screen: Pixels = np.bitwise_xor.accumulate(rows, axis=0)
        return screen

    def coloured(self) -> Pixels:
        """Return red, green and blue."""
        return np.ascontiguousarray(self._table()[self.indices(), :3])

    def gray(self) -> Pixels:
        """Return the brightness."""
        return np.ascontiguousarray(self._table()[self.indices(), 3])

    def _table(self) -> Pixels:
        return np.frombuffer(zlib.decompress(self.palette), np.uint8).reshape(256, 4)
