#!/bin/sh
# Compiles real sources: crates with rustc (several threads), SQLite with gcc.
# usage: build.sh REGISTRY, the folder with the unpacked crates
set -e
registry=$1 out=$(mktemp -d)
trap 'rm -r "$out"' EXIT
for crate in memchr-2 regex-syntax-0 itoa-1 bytes-1; do
  set -- "$registry/$crate".*
  rustc --edition 2021 --crate-type rlib --cap-lints allow -C opt-level=1 --cfg 'feature="std"' \
    --cfg 'feature="alloc"' --out-dir "$out" "$1/src/lib.rs"
done
gcc -O1 -c -o "$out/sqlite3.o" "$registry"/libsqlite3-sys-*/sqlite3/sqlite3.c
for name in stdio stdlib string math signal pthread sys/socket linux/perf_event; do
  echo "#include <$name.h>" >"$out/x.c"
  gcc -O2 -c -o "$out/x.o" "$out/x.c"
done
