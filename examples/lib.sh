# Shared by the examples: programs that are started, waited for, and ended with the script.

work=$(mktemp -d)
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

dormouse=${DORMOUSE:-}
if [ -z "$dormouse" ]; then
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  cargo build --release --manifest-path "$root/Cargo.toml"
  dormouse=$root/target/release/dormouse
fi
# The service and the server meet here.
export DORMOUSE_RUNTIME_DIR=$work

# Starts a program in the background, whose output goes to a file of that name.
start() {
  local name=$1
  shift
  "$@" >"$work/$name.log" 2>&1 &
  pids+=("$!")
}

# Waits until a program has printed something, which the expression takes out.
await() {
  local found
  until found=$(sed -n "$2" "$work/$1.log" | head -n 1) && [ -n "$found" ]; do
    alive
    sleep 0.1
  done
  echo "$found"
}

# Ends the script with what was said when a program has ended.
alive() {
  local pid
  for pid in "${pids[@]}"; do
    kill -0 "$pid" 2>/dev/null && continue
    tail -n 5 "$work"/*.log >&2
    exit 1
  done
}
