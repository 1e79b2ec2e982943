#!/usr/bin/env bash
# Posts every dashboard to a running Grafana and reads it back.
#
#   GRAFANA_URL=http://localhost:3000 GRAFANA_TOKEN=... bash dashboards/smoke.sh
#
# The token is one of a service account with the role Editor. Dashboards of the same uid are
# overwritten, in the folder "General" unless GRAFANA_FOLDER_UID names another.
set -euo pipefail

: "${GRAFANA_URL:?where Grafana listens, such as http://localhost:3000}"
: "${GRAFANA_TOKEN:?token of a service account with the role Editor}"
folder_uid=${GRAFANA_FOLDER_UID:-}
json=$(dirname "$0")/json

call() { # METHOD PATH [BODY]
  curl --fail-with-body --silent --show-error --request "$1" \
    --header "Authorization: Bearer $GRAFANA_TOKEN" --header "Content-Type: application/json" \
    ${3:+--data-binary "$3"} "$GRAFANA_URL$2"
}

for file in "$json"/*.json; do
  uid=$(basename "$file" .json)
  body=$(printf '{"overwrite":true,"folderUid":"%s","dashboard":%s}' "$folder_uid" "$(cat "$file")")
  call POST /api/dashboards/db "$body" >/dev/null
  read_back=$(call GET "/api/dashboards/uid/$uid")
  if [[ $read_back != *"\"uid\":\"$uid\""* ]]; then
    echo "not read back: $GRAFANA_URL/d/$uid" >&2
    exit 1
  fi
  echo "ok: $GRAFANA_URL/d/$uid"
done

answer=$(call GET /api/v1/provisioning/alert-rules)
# grep ends with 1 where there are none, which is no failure.
titles=$(grep -o '"title":"Plimsoll[A-Za-z]*"' <<<"$answer" || (($? == 1)))
rules=$(wc -w <<<"$titles")
echo "alert rules of ours that Grafana itself evaluates: $rules (0 if Prometheus does)"
