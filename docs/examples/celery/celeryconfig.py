"""Broker and results in a folder, which needs no server. Name yours here instead."""

import os

FOLDER = os.path.abspath(os.environ.get("BROKER_FOLDER", "broker"))
for name in ("queue", "results"):
    os.makedirs(f"{FOLDER}/{name}", exist_ok=True)

broker_url = "filesystem://"
broker_transport_options = {
    "data_folder_in": f"{FOLDER}/queue",
    "data_folder_out": f"{FOLDER}/queue",
    "control_folder": f"{FOLDER}/control",
}
result_backend = f"file://{FOLDER}/results"
