#!/usr/bin/env bash
# build_llama_server.sh DIR: a llama-server for the CPU in DIR/llama-server, from the sdist of
# llama-cpp-python, which carries llama.cpp. 15 to 30 minutes on two cores, once: DIR is kept.
set -euo pipefail

dir=$(realpath -m "$1")
python=${PYTHON:-python3}
version=${LLAMA_CPP_PYTHON:-}
[ -x "$dir/llama-server" ] && exit 0
command -v cmake >/dev/null || { echo "build_llama_server: cmake is not installed"; exit 1; }
mkdir -p "$dir/source"
"$python" -m pip download -q --no-deps --no-binary llama-cpp-python \
  -d "$dir" "llama-cpp-python${version:+==$version}"
tar -xzf "$dir"/llama_cpp_python-*.tar.gz -C "$dir/source" --strip-components=1
# Neither TLS nor the browser's page is needed, and the latter would be downloaded in the build.
nice cmake -S "$dir/source/vendor/llama.cpp" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release \
  -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
  -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_WEBUI=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF
nice cmake --build "$dir/build" --target llama-server --parallel "$(nproc)"
cp "$dir/build/bin/llama-server" "$dir/llama-server"
