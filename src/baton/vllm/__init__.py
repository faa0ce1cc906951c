"""Baton as a KV connector of vLLM: the handoff of this project between two vLLM engines.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "BatonConnector",
        "kv_connector_module_path": "baton.vllm.connector", "kv_role": "kv_producer",
        "kv_connector_extra_config": {...}}'

connector.py is what vLLM loads. In the scheduler's process it hands events to the leader
(scheduler_side.py). In the process of a rank it runs a pump on a thread of its own
(rank_process.py), with vLLM in the place of the engine (guest_engine.py).
"""
