#!/usr/bin/env bash
# Makes sure that CMake finds GoogleTest; without a package CMake downloads a pinned release.
set -euo pipefail

if [ -n "${GTEST_SOURCE_DIR:-}" ] || [ -f /usr/src/googletest/CMakeLists.txt ]; then
  exit 0
fi
if command -v pkg-config > /dev/null && pkg-config --exists 'gtest >= 1.12' gmock; then
  exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  echo '== installing GoogleTest with apt-get'
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    libgtest-dev libgmock-dev > /dev/null
  exit 0
fi
echo 'GoogleTest is not installed (Debian: libgtest-dev libgmock-dev); CMake will download it'
