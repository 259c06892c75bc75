"""What the emulated NVML reports of a card and never changes: identity, memory, modes."""
# ruff: noqa: N802, N815 -- pynvml's names

from __future__ import annotations

from typing import Any

from pytest_gpuenergy.emulator.card import Card
from pytest_gpuenergy.emulator.nvml_base import FIRST_BUS, NvmlBase, pci_address, reads
from pytest_gpuenergy.emulator.state import CardState


class IdentityFunctions(NvmlBase):
    """Identity, memory, modes."""

    @reads()
    def nvmlDeviceGetName(self, state: CardState, _card: Card) -> str:
        """Product name."""
        return state.profile.name

    @reads()
    def nvmlDeviceGetUUID(self, state: CardState, _card: Card) -> str:
        """UUID."""
        return state.uuid

    @reads()
    def nvmlDeviceGetIndex(self, state: CardState, _card: Card) -> int:
        """Index."""
        return self.states.index(state)

    @reads()
    def nvmlDeviceGetMinorNumber(self, state: CardState, _card: Card) -> int:
        """Number of the device file."""
        return self.states.index(state)

    @reads()
    def nvmlDeviceGetPciInfo(self, state: CardState, _card: Card) -> Any:
        """PCI address and IDs, as an ``nvmlPciInfo_t``."""
        index = self.states.index(state)
        info = self.pynvml.nvmlPciInfo_t()
        info.domain, info.bus, info.device = 0, FIRST_BUS + index, 0
        info.pciDeviceId = state.profile.pci_device_id
        info.busId = pci_address(index).encode()
        info.busIdLegacy = pci_address(index)[4:].encode()
        return info

    nvmlDeviceGetPciInfo_v3 = nvmlDeviceGetPciInfo

    @reads()
    def nvmlDeviceGetCudaComputeCapability(self, state: CardState, _card: Card) -> tuple[int, int]:
        """Major and minor number."""
        return state.profile.compute_capability

    @reads()
    def nvmlDeviceGetNumGpuCores(self, state: CardState, _card: Card) -> int:
        """Of all multiprocessors."""
        return state.profile.sm_count * state.profile.cores_per_sm

    @reads()
    def nvmlDeviceGetMemoryInfo(
        self, state: CardState, card: Card, version: int | None = None
    ) -> Any:
        """Memory in bytes, as a ``c_nvmlMemory_t`` or its second version."""
        memory = self.pynvml.c_nvmlMemory_v2_t() if version else self.pynvml.c_nvmlMemory_t()
        memory.total = state.profile.memory_mib << 20
        memory.used = (600 if card.load is None else 1200) << 20
        memory.free = memory.total - memory.used
        if version:
            memory.version, memory.reserved = version, 0
        return memory

    # -- modes -----------------------------------------------------------------------------

    @reads()
    def nvmlDeviceGetPersistenceMode(self, _state: CardState, _card: Card) -> int:
        """Always on."""
        return int(self.pynvml.NVML_FEATURE_ENABLED)

    @reads()
    def nvmlDeviceGetPowerManagementMode(self, _state: CardState, _card: Card) -> int:
        """Always on."""
        return int(self.pynvml.NVML_FEATURE_ENABLED)

    @reads()
    def nvmlDeviceGetVirtualizationMode(self, _state: CardState, _card: Card) -> int:
        """Always none."""
        return int(self.pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE)

    @reads()
    def nvmlDeviceGetMigMode(self, state: CardState, card: Card) -> list[int]:
        """Current and pending mode; off without a fault."""
        if not state.profile.has_mig:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        mode = int(any(card.active_faults("mig")))
        return [mode, mode]
