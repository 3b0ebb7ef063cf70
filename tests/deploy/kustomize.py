"""As much of kustomize as deploy/kubernetes uses: resources, components, configMapGenerator, images,
namespace and JSON 6902 patches. Anything else in a kustomization is an error here."""

import copy
import os

import yaml


def load_all(path):
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def _step(node, name):
    return node[int(name)] if isinstance(node, list) else node[name]


def _patch(resource, operations):
    """RFC 6902's add, remove and replace; what is removed or replaced must be there."""
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~")
                          for part in operation["path"].lstrip("/").split("/")]
        node = resource
        for part in parents:
            node = _step(node, part)
        value = copy.deepcopy(operation.get("value"))
        if operation["op"] == "add" and isinstance(node, list):
            node.insert(len(node) if last == "-" else int(last), value)
        elif operation["op"] == "add":
            node[last] = value
        elif operation["op"] == "replace":
            _step(node, last)
            node[last] = value
        elif operation["op"] == "remove":
            del node[last]
        else:
            raise ValueError(f"no such operation: {operation['op']}")


def _set_image(node, image):
    if isinstance(node, list):
        for item in node:
            _set_image(item, image)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "image" and isinstance(value, str):
                name, _, tag = value.rpartition(":")
                if name == image["name"]:
                    node[key] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
            else:
                _set_image(value, image)


def _config_map(folder, generator):
    data = {}
    for name in generator["files"]:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            data[name] = file.read()
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]},
            "data": data}


def build(folder, resources=None):
    """The resources of a kustomization, without the hash in the names of generated ones."""
    kustomization, = load_all(os.path.join(folder, "kustomization.yaml"))
    known = {"apiVersion", "kind", "resources", "components", "configMapGenerator", "images",
             "namespace", "patches"}
    if set(kustomization) - known:
        raise ValueError(f"{folder}: {set(kustomization) - known} are not understood here")
    found = [] if resources is None else resources
    for name in kustomization.get("resources", []):
        path = os.path.join(folder, name)
        found += build(path) if os.path.isdir(path) else load_all(path)
    found += [_config_map(folder, g) for g in kustomization.get("configMapGenerator", [])]
    for name in kustomization.get("components", []):
        build(os.path.join(folder, name), found)
    for patch in kustomization.get("patches", []):
        target = patch["target"]
        matches = [r for r in found if r["kind"] == target["kind"]
                   and r["metadata"]["name"] == target["name"]]
        if len(matches) != 1:
            raise ValueError(f"{folder}: {len(matches)} resources match {target}")
        _patch(matches[0], yaml.safe_load(patch["patch"]))
    for image in kustomization.get("images", []):
        _set_image(found, image)
    if "namespace" in kustomization:
        for resource in found:
            resource["metadata"]["namespace"] = kustomization["namespace"]
    return found
