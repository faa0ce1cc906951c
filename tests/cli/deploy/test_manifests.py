"""`baton deploy kubernetes`: what it prints is what a cluster takes, and all of it fits
together."""

import json
import re
from pathlib import Path

import jsonschema
import kubernetes_validate
import msgspec
import pytest
from tests.cli.deploy.shapes import SHAPES, documents, pod_templates

from baton.cli.main import run
from baton.gateway import metrics
from baton.vllm.settings import ConnectorSettings

VERSIONS = ("1.28", "1.33", "1.37")
LWS = json.loads((Path(__file__).parent / "leaderworkerset.json").read_text())
METRICS_PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def printed(capsys):
    """The manifests of a command line."""

    def run_it(*flags):
        capsys.readouterr()
        assert run(["deploy", "kubernetes", *flags]) == 0
        return documents(capsys.readouterr().out)

    return run_it


@pytest.fixture(params=SHAPES, ids=lambda name: name.replace(" ", "-"))
def shape(request, printed):
    return printed(*SHAPES[request.param])


def kinds(manifests):
    return sorted((each["kind"], each["metadata"]["name"]) for each in manifests)


def validate(manifest, version):
    if manifest["kind"] != "LeaderWorkerSet":
        kubernetes_validate.validate(manifest, version, strict=True)
        return
    jsonschema.validate(manifest, LWS)
    for template in pod_templates(manifest):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {}, "template": template}
        kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_takes_every_shape(shape, version):
    for manifest in shape:
        validate(manifest, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_check_is_strict(printed, version):
    for name in SHAPES:
        for manifest in printed(*SHAPES[name]):
            for template in pod_templates(manifest):
                template["spec"]["containers"][0]["livenesProbe"] = {}
                with pytest.raises(jsonschema.ValidationError):
                    validate(manifest, version)
                del template["spec"]["containers"][0]["livenesProbe"]
            manifest["spec"]["replica"] = 1
            with pytest.raises(jsonschema.ValidationError):
                validate(manifest, version)


def test_one_and_one_is_all_that_a_service_needs(printed):
    assert kinds(printed(*SHAPES["one and one"])) == [
        ("Deployment", "baton-decode"),
        ("Deployment", "baton-prefill"),
        ("NetworkPolicy", "baton-clients"),
        ("NetworkPolicy", "baton-peers"),
        ("PodDisruptionBudget", "baton-decode"),
        ("PodDisruptionBudget", "baton-gateway"),
        ("PodDisruptionBudget", "baton-prefill"),
        ("Service", "baton"),
        ("Service", "baton-gateway"),
        ("StatefulSet", "baton-gateway"),
    ]


def test_numbers_names_and_namespace_are_as_asked(printed):
    found = printed(*SHAPES["two and four with tp 2"])
    assert {each["metadata"]["namespace"] for each in found} == {"serving"}
    assert {each["metadata"]["name"].partition("-")[0] for each in found} == {"llama"}
    scaled = {
        each["spec"]["scaleTargetRef"]["name"]: each["spec"]
        for each in found
        if each["kind"] == "HorizontalPodAutoscaler"
    }
    bounds = {name: (spec["minReplicas"], spec["maxReplicas"]) for name, spec in scaled.items()}
    assert bounds == {"llama-prefill": (2, 4), "llama-decode": (4, 8)}
    by_name = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in found}
    # what an autoscaler has decided is not undone when the manifest is applied again
    assert "replicas" not in by_name["Deployment", "llama-decode"]
    assert by_name["StatefulSet", "llama-gateway"]["replicas"] == 2
    assert by_name["Service", "llama"]["ports"][0]["port"] == 80
    assert flags_of(by_name["Deployment", "llama-decode"])["--tp"] == ["2"]


def test_a_worker_of_several_pods_is_a_leader_worker_set(printed):
    found = printed(*SHAPES["a worker of two nodes"])
    (group,) = [each["spec"] for each in found if each["kind"] == "LeaderWorkerSet"]
    leader, other = (flags_of({"template": t}) for t in pod_templates({"spec": group}))
    assert group["leaderWorkerTemplate"]["size"] == 2
    assert (leader["--tp"], leader["--threads"]) == (["4"], ["2"])  # 4 cores, 2 ranks in each pod
    assert leader["--nnodes"] == ["$(LWS_GROUP_SIZE)"]
    assert other["--rendezvous"] == ["$(LWS_LEADER_ADDRESS):29500"]
    assert leader.pop("--rendezvous") == ["$(POD_IP):29500"]
    other.pop("--rendezvous")
    assert leader == other
    (scaler,) = [each["spec"] for each in found if each["kind"] == "HorizontalPodAutoscaler"]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": "baton-decode",
    }


def test_vllm_gets_the_settings_of_the_connector(printed):
    found = printed(*SHAPES["vllm"])
    for each in [e for e in found if e["kind"] == "Deployment"]:
        container = each["spec"]["template"]["spec"]["containers"][0]
        assert container["command"] == ["vllm"]
        said = json.loads(flags_of(each["spec"])["--kv-transfer-config"][0])
        role = {"baton-prefill": "kv_producer", "baton-decode": "kv_consumer"}
        assert said["kv_role"] == role[each["metadata"]["name"]]
        extra = said["kv_connector_extra_config"]
        assert msgspec.convert(extra, ConnectorSettings).gateways == (
            "tcp://baton-gateway-0.baton-gateway:5555",
        )
        assert extra["url"].endswith(f":{container['ports'][0]['containerPort']}")


def flags_of(spec):
    """The flags of the first container, each with all its values."""
    found = {}
    for arg in spec["template"]["spec"]["containers"][0]["args"]:
        flag, equals, value = arg.partition("=")
        if equals:
            found.setdefault(flag, []).append(value)
    return found


# ---- what holds for every shape -----------------------------------------------------------------


def test_selectors_find_the_pods_that_they_mean(shape):
    pods = [
        (each["metadata"]["name"], t["metadata"]["labels"])
        for each in shape
        for t in pod_templates(each)
    ]

    def selected(labels):
        return {name for name, own in pods if labels.items() <= own.items()}

    everybody = {name for name, _ in pods}
    assert len(everybody) == 3
    for each in shape:
        spec, name = each["spec"], each["metadata"]["name"]
        match each["kind"]:
            case "Service":
                assert {n.rpartition("-")[2] for n in selected(spec["selector"])} == {"gateway"}
            case "Deployment" | "StatefulSet" | "PodDisruptionBudget":
                assert selected(spec["selector"]["matchLabels"]) == {name}
            case "NetworkPolicy":
                wanted = (
                    everybody if name.endswith("-peers") else {n for n in everybody if "gate" in n}
                )
                assert selected(spec["podSelector"]["matchLabels"]) == wanted


def test_ports_are_known_by_the_names_that_others_use(shape):
    containers = [c for each in shape for t in pod_templates(each) for c in t["spec"]["containers"]]
    for container in containers:
        own = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in own
    (gateway,) = [c for c in containers if c["name"] == "gateway"]
    own = {port["name"] for port in gateway["ports"]}
    for each in shape:
        if each["kind"] == "Service":
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= own
        if each["metadata"]["name"].endswith("-clients"):
            assert {p["port"] for p in each["spec"]["ingress"][0]["ports"]} <= own


def test_workers_name_each_gateway_as_the_headless_service_does(shape):
    (gateways,) = [each for each in shape if each["kind"] == "StatefulSet"]
    (service,) = [each for each in shape if each["spec"].get("clusterIP") == "None"]
    name, own = gateways["metadata"]["name"], service["metadata"]["name"]
    assert gateways["spec"]["serviceName"] == own
    # workers look for gateways that are not ready yet: these get ready when workers have come
    assert service["spec"]["publishNotReadyAddresses"] is True
    port = service["spec"]["ports"][0]["port"]
    wanted = {f"tcp://{name}-{i}.{own}:{port}" for i in range(gateways["spec"]["replicas"])}
    for each in shape:
        if each["kind"] in ("Deployment", "LeaderWorkerSet"):
            for template in pod_templates(each):
                args = " ".join(template["spec"]["containers"][0]["args"])
                assert set(re.findall(r"tcp://[\w.-]+-gateway:\d+", args)) == wanted


def test_pods_are_given_longer_than_they_take_to_end(shape):
    drain = None
    for each in shape:
        for template in pod_templates(each):
            (container,) = template["spec"]["containers"]
            waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
            if container["name"] == "gateway":
                waits += 60  # --shutdown-timeout
                drain = waits
            assert template["spec"]["terminationGracePeriodSeconds"] >= waits + 10
            assert waits >= drain, "a worker outlives the requests of a gateway"
    assert drain is not None


def test_pods_need_no_rights_and_write_to_volumes_alone(shape):
    for each in shape:
        for template in pod_templates(each):
            pod = template["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            # else Kubernetes sets BATON_PORT to an address, for a Service named baton
            assert pod["enableServiceLinks"] is False
            volumes = {volume["name"] for volume in pod["volumes"]}
            for container in [*pod["containers"], *pod.get("initContainers", [])]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
                mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
                assert set(mounts) == volumes
                env = {v["name"]: v.get("value") for v in container["env"]}
                assert {env["HOME"], "/tmp"} <= set(mounts.values())
                secrets = [v["secret"] for v in pod["volumes"] if "secret" in v]
                assert {s["defaultMode"] for s in secrets} == {0o400}


def test_an_autoscaler_asks_for_a_metric_that_there_is(printed):
    found = printed(*SHAPES["two and four with tp 2"])
    scalers = [each["spec"] for each in found if each["kind"] == "HorizontalPodAutoscaler"]
    for spec in scalers:
        (metric,) = spec["metrics"]
        role = spec["scaleTargetRef"]["name"].rpartition("-")[2]
        assert metric["object"]["metric"]["selector"]["matchLabels"] == {"role": role}
        assert metric["object"]["target"] == {"type": "AverageValue", "averageValue": "1"}
        name = metric["object"]["metric"]["name"]
        assert f"`{name}`" in METRICS_PAGE.read_text()
        assert name in Path(metrics.__file__).read_text()
        services = {e["metadata"]["name"] for e in found if e["kind"] == "Service"}
        assert metric["object"]["describedObject"]["name"] in services


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--name=Baton"], ["--name Baton", "small letters", "40"]),
        (["--name=" + "a" * 41], ["a" * 41, "at most 40", "has 41"]),
        (["--name=1st"], ["--name 1st", "a letter first"]),
        (["--namespace=a.b"], ["--namespace a.b", "63"]),
        (["--secret-name=a_b"], ["--secret-name a_b", "253"]),
        (["--prefill=0"], ["--prefill 0", "at least 1"]),
        (["--port=70000"], ["--port 70000", "65535"]),
        (["--decode=4", "--max-decode=3"], ["--max-decode 3", "at least 4"]),
        (["--decode-tp=3", "--decode-nodes=2"], ["--decode-nodes 2", "3 ranks", "--decode-tp"]),
        (["--decode-tp=8", "--cpu=4"], ["--cpu 4", "8 ranks", "--cpu 8"]),
        (["--memory=much"], ["--memory", "'much'", "2GiB"]),
        (["--env=A-B=c"], ["--env A-B", "letters"]),
        (["--env=A"], ["--env A", "KEY=VALUE"]),
        (["./model"], ["./model", "--model-claim", "owner/model"]),
        (["meta/llama", "--model-claim=c"], ["meta/llama", "/models"]),
        (["--engine=sglang"], ["sglang", "baton, vllm"]),
        (["a/b", "--engine=vllm"], ["--engine vllm", "--image"]),
        (["--engine=vllm", "--image=i"], ["smollm2", "Hub"]),
        (
            ["a/b", "--engine=vllm", "--image=i", "--decode-tp=2", "--decode-nodes=2"],
            ["--decode-nodes 2", "--engine baton"],
        ),
    ],
)
def test_what_cannot_be_is_one_line(flags, words, capsys):
    assert run(["deploy", "kubernetes", *flags]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("baton: ")
    assert said.err.count("\n") == 1
    assert [word for word in words if word not in said.err] == []
