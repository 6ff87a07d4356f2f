"""Which devices a load may use, how they share a model, and how that is said."""

from dataclasses import replace

import pytest
from tests.models.other_servers import LOOPBACK, free_port

from slipstream.app.engine import devices
from slipstream.app.protocol.requests import Devices, Load
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.llama.devices import Device, survey
from slipstream.models.memory.fit import Fit
from slipstream.models.memory.need import Need

GB = 10**9
CPU = Device("CPU", "cpu", "a processor", 16 * GB, 12 * GB)
CUDA = [Device(f"CUDA{n}", "gpu", "a GPU", 8 * GB, 7 * GB) for n in range(2)]
LENT = Device("mac:50052/0", "gpu", "mac:50052", 24 * GB, 21 * GB, "mac:50052")
FOUND = devices.FoundDevices((*CUDA, LENT, CPU))


def fitting(**shares: int) -> Fit:
    named = {name.replace("mac", "mac:50052/0"): count for name, count in shares.items()}
    return Fit("gpu", -1, 4096, "f16", Need(1, 1, 1), "", named)


def test_a_placement_says_what_llama_cpp_is_told() -> None:
    assert devices.proportions(Devices(), FOUND) == []
    assert devices.proportions(Devices(tensor_split="3, 1"), FOUND) == [3.0, 1.0, 0.0]
    assert devices.proportions(Devices(tensor_split="3,1", split_mode="none"), FOUND) == []
    placed = devices.placement(
        Load(model="", devices=Devices(split_mode="row", main_gpu=1)), fitting(CUDA0=10, CUDA1=5)
    )
    assert (placed.devices, placed.shares, placed.mode, placed.main) == (("CUDA0", "CUDA1"), (10, 5), "row", 1)
    assert devices.placement(Load(model=""), fitting()).devices == ()


@pytest.mark.parametrize("split", ["1,1,1,1", "0,0", "-1,2", "a", "1;2", "nan,1"])
def test_proportions_that_cannot_be_are_refused(split: str) -> None:
    with pytest.raises(UsageError, match="tensor-split is"):
        devices.proportions(Devices(tensor_split=split), FOUND)


def test_the_draft_models_device_is_one_of_those_here_or_the_processor() -> None:
    assert devices.draft_device(Devices(), FOUND) == ""
    assert devices.draft_device(Devices(draft="mac:50052/0"), FOUND) == "mac:50052/0"
    with pytest.raises(UsageError, match="no device 'CUDA7'") as refused:
        devices.draft_device(Devices(draft="CUDA7"), FOUND)
    assert "CUDA0, CUDA1, mac:50052/0, CPU" in refused.value.hint
    missing = devices.FoundDevices((CPU, CUDA[0]), ("Without mac:50052: connection refused.",))
    assert devices.draft_device(Devices(rpc="mac:50052", draft="mac:50052/0"), missing) == "CPU"
    request, fit = Load(model=""), fitting(CUDA0=10, mac=20)
    assert devices.draft_placement(request, fit, FOUND, "").devices == ("CUDA0",)
    assert devices.draft_placement(request, fit, devices.FoundDevices((LENT, CPU)), "").devices == ()
    assert devices.draft_placement(request, fitting(), FOUND, "").devices == ()
    assert devices.draft_placement(request, fitting(), FOUND, "mac:50052/0").machines == ["mac:50052"]
    assert devices.draft_placement(replace(request, draft_gpu_layers=0), fit, FOUND, "CUDA1").devices == ()


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({}, "CPU, 2 threads"), ({"CUDA0": 15}, "CUDA"), ({"CUDA1": 15}, "CUDA1"),
        ({"CUDA0": 7}, "CUDA 7 of 15 layers"), ({"CUDA0": 10, "CUDA1": 5}, "CUDA 10, CUDA1 5 of 15 layers"),
        ({"CUDA0": 5, "mac": 10}, "CUDA 5, mac:50052 10 of 15 layers"), ({"mac": 15}, "mac:50052"),
    ],
)  # fmt: skip
def test_the_top_bar_says_who_holds_how_many_layers(shares: dict[str, int], said: str) -> None:
    assert devices.describe(fitting(**shares), FOUND, 2, 15) == said


def test_the_top_bar_says_where_the_draft_model_and_experts_are() -> None:
    fit = fitting(mac=15)
    local = devices.draft_placement(Load(model=""), fit, devices.FoundDevices((LENT, CPU)), "")
    assert devices.describe(fit, FOUND, 2, 15, local) == "mac:50052, draft on CPU"
    there = devices.draft_placement(Load(model=""), fit, FOUND, "mac:50052/0")
    assert devices.describe(fit, FOUND, 2, 15, there) == "mac:50052"
    fit = replace(fitting(CUDA0=9), cpu_experts=4)
    assert devices.describe(fit, FOUND, 2, 9) == "CUDA, experts of 4 layers on CPU"
    assert devices.placement(Load("m"), fit).cpu_experts == 4


def test_machines_are_asked_only_where_layers_may_leave_the_processor() -> None:
    nowhere = Devices(rpc=f"{LOOPBACK}:{free_port()}")
    assert devices.find(Load(model="", gpu_layers=0, devices=nowhere)).lacking == ()
    if "RPC" in survey().backends:
        [words] = devices.find(Load(model="", devices=nowhere)).lacking
        assert words == f"Without {nowhere.rpc}: connection refused."
    else:
        with pytest.raises(SlipstreamError, match="built without RPC") as refused:
            devices.find(Load(model="", devices=nowhere))
        assert "-DGGML_RPC=on" in refused.value.hint


def test_without_splitting_the_main_gpu_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.engine.devices.survey_here", lambda: replace(survey(), devices=(*CUDA, CPU)))
    found = devices.find(Load(model="", devices=Devices(split_mode="none", main_gpu=1)))
    assert [device.name for device in found.devices] == ["CUDA1", "CPU"]
    with pytest.raises(UsageError, match="main-gpu is 2"):
        devices.find(Load(model="", devices=Devices(split_mode="none", main_gpu=2)))
