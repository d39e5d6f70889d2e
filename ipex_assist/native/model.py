"""A model's packed weights in the native core."""

from __future__ import annotations

import ctypes
import logging
from array import array
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import NotFiniteError
from ipex_assist.native.library import Pool, last_error, library
from ipex_assist.native.sizes import new_model
from ipex_assist.native.structures import PRECISIONS, SOURCE_TYPES
from ipex_assist.quantization.precision import INT4_GROUP

if TYPE_CHECKING:
    import torch

log = logging.getLogger("ipex_assist")


class PassCycles(NamedTuple):
    """Processor cycles of linears, attention, whole passes, and indexers' scores and choice, which are of attention."""

    linear: int
    attention: int
    total: int
    scores: int
    choice: int


class PackedModel:
    """Packed weights of one model in the core. Freed with the object."""

    def __init__(
        self,
        spec: DecoderSpec,
        precision: str,
        pool: Pool,
        group: int = INT4_GROUP,
        *,
        outer_precision: str | None = None,
        ordered: bool = False,
        formats: Mapping[str, int] = MappingProxyType({}),
        resident: int = 0,
    ) -> None:
        """outer_precision: of the head and the embedding's projections, `precision` where None.

        ordered: linears have an order of input columns of their own (executors/native/stored.py). formats: of weights
        that have one of their own, the core's numbers (executors/native/block_weights.py). resident: bytes of weights
        in memory at most, where routed experts are read as they are needed; 0: all are in memory.
        """
        self.spec, self.precision, self.pool, self.group = spec, precision, pool, group
        self.library = library()
        self.settles = False  # whether `settle` has something to do
        self.mapped = False  # whether weights may still be on a disk
        self._checksum: int | None = None
        self.reads_experts = resident > 0
        self.handle = new_model(spec, precision, group, outer_precision, ordered, formats, resident)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.ia_model_delete(self.handle)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed image; without experts that are read as they are needed."""
        return int(self.library.ia_model_bytes(self.handle))

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights in memory; of experts that are read as they are needed, those of the places for them."""
        return int(self.library.ia_model_resident_bytes(self.handle))

    def state_bytes(self, kv_precision: str) -> int:
        """Bytes of the state of one sequence; 0 where no layer keeps one."""
        size = int(self.library.ia_state_bytes(self.handle, PRECISIONS[kv_precision]))
        self.check(size)
        return size

    def block_bytes(self, kv_precision: str) -> int:
        """Bytes of the keys and values of 256 positions. Raises IpexAssistError for fp32 where attention is in bf16."""
        size = int(self.library.ia_block_bytes(self.handle, PRECISIONS[kv_precision]))
        self.check(size)
        return size

    def image(self, piece: int = 64 << 20) -> Iterator[memoryview]:
        """Yield the packed image, at most `piece` bytes at a time; one of them is gone when the next is asked for.

        It is the same on every machine; where memory has it in another order (native/packing/layout.cpp) it is copied.
        """
        buffer = (ctypes.c_char * piece)()
        for start in range(0, self.nbytes, piece):
            size = min(piece, self.nbytes - start)
            found = self.library.ia_model_image(self.handle, start, size, buffer)
            self.check(0 if found else -1)
            yield memoryview((ctypes.c_char * size).from_address(found)).cast("B")

    def checksum(self, pool: Pool | None = None) -> int:
        """Return the checksum of the packed image; 64 bits, not cryptographic.

        pool: the threads that read it, whose number changes nothing; the model's own where None.
        """
        found = ctypes.c_uint64()
        self.check(self.library.ia_checksum(self.handle, (pool or self.pool).handle, ctypes.byref(found)))
        self._checksum = found.value
        return found.value

    def known_checksum(self) -> int:
        """The checksum of an image that is whole and stays as it is: computed once."""
        return self.checksum() if self._checksum is None else self._checksum

    def allocate(self) -> None:
        """Reserve empty memory for `pack`, each thread's slice on its own node."""
        self.check(self.library.ia_model_allocate(self.handle, self.pool.handle))
        _tell_refused(self)

    def adopt(self, file: int, offset: int, copy: bool, *, settle: bool = False) -> None:
        """Take the image from an open file: mapped, or copied so that each thread has its slice on its own node.

        settle: a copy is wanted, but not at once: `settle` makes it, until when the image may be mapped.
        """
        status = self.library.ia_model_adopt(self.handle, self.pool.handle, file, offset, 2 if settle else int(copy))
        self.check(status)
        self.settles = status == 1
        self.mapped = self.settles or not (copy or settle)
        _tell_refused(self)

    def join_pages(self, seconds: float) -> bool:
        """Make huge pages of small ones in about so many seconds; False where some stay, or the kernel cannot."""
        done = self.library.ia_model_join_pages(self.handle, seconds)
        self.check(done)
        return bool(done)

    def settle(self, size: int) -> None:
        """Copy the next `size` bytes or so of an image that is still mapped; no pass may run meanwhile.

        Where there is no memory for them it stays mapped.
        """
        self.settles = self.mapped = self.library.ia_model_settle(self.handle, self.pool.handle, size) == 1

    def share_table(self, other: PackedModel) -> None:
        """Look tokens up in the table of `other`, a model of the same checkpoint.

        Before `pack`, which then skips this model's own table, or when the image is whole: the memory of its table is
        given back. Such an image must not be saved.
        """
        status = self.library.ia_model_share_table(self.handle, other.handle)
        self.check(status)
        if status and self.spec.head is not None:  # others have a table of their own
            head = self.spec.head
            width = head.target_hidden_size if head.kind == "shared_kv" else self.spec.hidden_size
            raise IpexAssistError(
                f"a draft head of {width} columns for {self.spec.vocab_size} tokens cannot use the "
                f"embedding of a target with {other.spec.hidden_size} for {other.spec.vocab_size}"
            )

    def share_head(self, other: PackedModel) -> None:
        """Compute logits by the head of `other`, this draft head's target, in the precision that it has there.

        Raises IpexAssistError where the heads differ in shape.
        """
        status = self.library.ia_model_share_head(self.handle, other.handle)
        self.check(status)
        if status:
            raise IpexAssistError(
                f"a draft head for {self.spec.lm_head_rows} tokens of {self.spec.hidden_size} columns cannot use the "
                f"lm_head of a target with {other.spec.lm_head_rows} of {other.spec.hidden_size}"
            )

    def pack(self, name: str, tensor: torch.Tensor) -> None:
        """Pack one of our weights (models/weights.py), given in the checkpoint's own type.

        Raises NotFiniteError where it holds NaN or infinity.
        """
        tensor = _readable(tensor)
        rows, columns = (tensor.shape[0], 1) if tensor.dim() == 1 else tensor.shape
        status = self.library.ia_model_pack(
            self.handle,
            self.pool.handle,
            name.encode(),
            SOURCE_TYPES[str(tensor.dtype).removeprefix("torch.")],
            tensor.data_ptr(),
            rows,
            columns,
        )
        self.check_packed(status, name, tuple(tensor.shape))

    def pack_rows(self, name: str, first: int, tensor: torch.Tensor) -> None:
        """`pack` of rows `first` and following of a matrix, a multiple of 16 of them; the last ones may be fewer."""
        tensor = _readable(tensor)
        status = self.library.ia_model_pack_rows(
            self.handle,
            self.pool.handle,
            name.encode(),
            SOURCE_TYPES[str(tensor.dtype).removeprefix("torch.")],
            tensor.data_ptr(),
            first,
            *tensor.shape,
        )
        self.check_packed(status, f"{name}, rows {first} to {first + tensor.shape[0]},", tuple(tensor.shape))

    def pack_file(self, name: str, file: int, offset: int, dtype: str, shape: tuple[int, ...]) -> None:
        """`pack` of a tensor in an open file, from byte `offset` on; each thread reads the rows that it packs.

        dtype: float32, float16 or bfloat16. Raises IpexAssistError where the file is too short.
        """
        rows, columns = (shape[0], 1) if len(shape) == 1 else shape
        status = self.library.ia_model_pack_file(
            self.handle,
            self.pool.handle,
            name.encode(),
            SOURCE_TYPES[dtype],
            file,
            offset,
            rows,
            columns,
        )
        self.check_packed(status, name, shape)

    def format_of(self, name: str) -> int:
        """The core's number of the format that one of our weights has as a part of a linear."""
        found = int(self.library.ia_model_format(self.handle, name.encode()))
        self.check(found)
        return found

    def pack_blocks(
        self, name: str, file: int, offsets: array[int], columns: int, row_scales: array[float] | None = None
    ) -> None:
        """Pack a weight whose rows lie in an open file, in blocks of its own format, row i from byte `offsets[i]` on.

        file: -1: they lie in memory, at these addresses. row_scales: a float for each row, of formats that have such.
        Raises NotFiniteError where a scale is NaN or infinite, IpexAssistError where the file is too short.
        """
        rows = len(offsets)
        if row_scales is not None and (row_scales.typecode, len(row_scales)) != ("f", rows):
            raise ValueError(f"{len(row_scales)} scales of type {row_scales.typecode} for {rows} rows")
        scales = None if row_scales is None else row_scales.buffer_info()[0]
        status = self.library.ia_model_pack_blocks(
            self.handle, self.pool.handle, name.encode(), file, offsets.buffer_info()[0], rows, columns, scales
        )
        self.check_packed(status, name, (rows, columns))

    def check_packed(self, status: int, name: str, shape: tuple[int, ...]) -> None:
        """Raise where the core did not take a weight: see ia_model_pack in api.cpp."""
        self.check(status)
        if status == 1:
            raise IpexAssistError(f"{name} {shape} has no place among the weights of this {self.spec.model_type}")
        if status == 2:
            raise NotFiniteError(name, last_error())

    def linears(self, which: str, x: torch.Tensor) -> torch.Tensor:
        """Run one linear of every layer in turn on x (rows, width), outside a pass; return the last's (rows, columns).

        which: qkv (parts begin at multiples of 16 columns), output, up (gate and up by turns of 16 columns) or down.
        """
        import torch

        spec, first = self.spec, self.spec.layers[0]
        columns = {
            "qkv": spec.layers[0].mixer_in_size + 6 * 16,
            "output": spec.hidden_size,
            "up": (first.inner_size + 16) * (2 if first.mlp is not None and first.mlp.gated else 1),
            "down": spec.hidden_size,
        }
        out = torch.zeros(x.shape[0], -(-columns[which] // 16) * 16)
        x = x.float().contiguous()
        self.check(
            self.library.ia_linears(
                self.handle,
                self.pool.handle,
                list(columns).index(which),
                x.data_ptr(),
                x.shape[0],
                out.data_ptr(),
                out.shape[1],
            )
        )
        return out

    def cycles(self) -> PassCycles:
        """Those since the last call."""
        values = (ctypes.c_uint64 * len(PassCycles._fields))()
        self.library.ia_timing(self.handle, values)
        return PassCycles(*values)

    @property
    def experts_read(self) -> int:
        """How many experts the last call's passes read, of all layers, each once a pass; shared ones do not count."""
        return int(self.library.ia_experts_read(self.handle))

    def check(self, status: int) -> None:
        """Raise IpexAssistError where a call of the core failed."""
        if status < 0:
            raise IpexAssistError(f"the native core failed: {last_error()}")


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory as the core reads it."""
    known = str(tensor.dtype).removeprefix("torch.") in SOURCE_TYPES
    return (tensor if known else tensor.float()).contiguous()


def _tell_refused(model: PackedModel) -> None:
    if model.library.ia_nodes_refused(model.handle):
        log.info(
            "the kernel refuses memory policies (mbind): weights lie where they are written first, mostly on the "
            "node that reads them; in a container, --cap-add SYS_NICE"
        )
