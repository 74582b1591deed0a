# Functions for the scripts of cases that start a server.

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../target/tools" && pwd)
export CLASSPATH="$tools/kafka/*"
# Small, and quick to start.
java="java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Starts a server in the background: its log is NAME.log, its process id NAME.pid. It is killed when the case's folder
# is removed, and after ten minutes.
engine() {
  local name=$1
  shift
  (
    exec > "$name.log" 2>&1 < /dev/null
    "$@" &
    pid=$!
    echo "$pid" > "$name.pid"
    trap - ERR
    set +e
    for _ in $(seq 600); do
      sleep 1
      [ -e "$name.pid" ] || break
      kill -0 "$pid" || exit 0
    done
    kill -9 "$pid"
  ) &
  until [ -s "$name.pid" ]; do sleep 0.05; done
}

# Waits until a server listens. One that ends before is an error, and its log is shown.
await() {
  local name=$1 port=$2
  until (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do
    if ! kill -0 "$(cat "$name.pid")" 2> /dev/null; then
      tail -n 20 "$name.log"
      return 1
    fi
    sleep 0.1
  done
}

# Kills a server and waits until it is gone.
stop() {
  local pid
  pid=$(cat "$1.pid")
  rm "$1.pid"
  kill -9 "$pid"
  while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
}

# Starts the broker of broker.properties.
broker() {
  engine broker $java -Dlog4j.configuration=file:log4j.properties kafka.Kafka broker.properties
  await broker "$1"
}

# Prints COUNT messages of TOPIC, each after its partition and its key.
consume() {
  timeout 120 $java -Dlog4j.configuration=file:log4j.properties org.apache.kafka.tools.consumer.ConsoleConsumer \
    --bootstrap-server "127.0.0.1:$1" --topic "$2" --max-messages "$3" --from-beginning --timeout-ms 60000 \
    --property print.partition=true --property print.key=true 2> consumer.log
}
