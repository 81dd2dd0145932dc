#!/usr/bin/env bash
# Build an image of examples/docker without a daemon, use it as an ordinary user, print its size.
#
# Usage: scripts/images.sh [Dockerfile|tensorflow.Dockerfile] [BASE] [-- OPTIONS OF buildah build]
#
# BASE is the name of an image, or a folder with a root file system, which becomes the base:
#   debootstrap --variant=minbase --include=python3-venv,python3-pip,ca-certificates \
#     bookworm base http://deb.debian.org/debian
#   scripts/images.sh Dockerfile base
# Needs buildah, and as much room as the image three times over. Takes about ten minutes.
set -euo pipefail

cd "$(dirname "$0")/.."
file=${1:-Dockerfile}
base=${2:-}
shift $(($# < 2 ? $# : 2))
[ "${1:-}" = -- ] && shift
export BUILDAH_ISOLATION=chroot
image=localhost/kbatch-$(echo "${file%.Dockerfile}" | tr '[:upper:]' '[:lower:]')

if [ -d "$base" ]; then
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$base" / > /dev/null
  # what python:3.12-slim brings: `python`, and a pip that installs into the system's Python
  buildah run "$container" -- sh -c \
    'ln -sf python3 /usr/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED'
  buildah commit --quiet --rm "$container" localhost/kbatch-base > /dev/null
  base=localhost/kbatch-base
fi

buildah build --file "examples/docker/$file" ${base:+--build-arg "BASE=$base"} \
  --tag "$image" "$@" .
out=$(mktemp -d)
container=$(buildah from "$image")
trap 'buildah rm "$container" > /dev/null; rm -rf "$out"' EXIT
chown 1000:1000 "$out"
as_user() { buildah run --user 1000:1000 --volume "$out:/out" "$container" -- "$@"; }

echo "== kbatch doctor, as user 1000"
as_user kbatch doctor
echo "== kbatch cats-vs-dogs, as user 1000"
as_user kbatch cats-vs-dogs --trials 2 --seconds-per-trial 3 --confirm 2 --out /out
ls -l "$out"
echo "== size"
buildah images --format '{{.Name}} {{.Size}}'
folder=$(buildah mount "$container")
du -sm "$folder"
packages=$(as_user python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
du -sm "$folder$packages"/* | sort -rn | head -20
