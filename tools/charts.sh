#!/usr/bin/env bash
# Checks the Helm chart, the plain manifests and the alerts with the tools that users have: everything
# must render, be of Kubernetes' schemas, and say what it says here.
#
#   tools/charts.sh FOLDER-OF-HELM-AND-KUBERNETES-VALIDATE
set -euo pipefail

helm=$1/helm
validate=$1/kubernetes-validate
chart=deploy/helm/berth
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
checks=0

fail() {
	echo "charts: $*" >&2
	exit 1
}

# Definitions of others (cert-manager, Prometheus) have no schema here, which is a warning.
of_schema() {
	for version in 1.28 1.33; do
		"$validate" --kubernetes-version "$version" --strict --quiet --no-warn "$1" || fail "$1 is not of Kubernetes $version"
	done
	checks=$((checks + 1))
}

rendered() {
	"$helm" template berth "$chart" --namespace berth-system "$@" >"$folder/rendered.yaml" || fail "does not render with: $*"
	of_schema "$folder/rendered.yaml"
	# Rights are listed one by one.
	if grep -nE "^ *(apiGroups|resources|verbs|resourceNames):.*\*" "$folder/rendered.yaml"; then
		fail "a wildcard in rights with: $*"
	fi
}

refused() {
	local why=$1
	shift
	if "$helm" template berth "$chart" --namespace berth-system "$@" >/dev/null 2>"$folder/said"; then
		fail "accepted: $*"
	fi
	grep -q -- "$why" "$folder/said" || fail "refused for another reason than $why: $(cat "$folder/said")"
	checks=$((checks + 1))
}

has() {
	grep -q -- "$1" "$folder/rendered.yaml" || fail "not rendered: $1"
}

lacks() {
	! grep -q -- "$1" "$folder/rendered.yaml" || fail "rendered, and should not be: $1"
}

"$helm" lint --strict --quiet "$chart"
for file in deploy/kubernetes/*/*.yaml; do of_schema "$file"; done

rendered
has 'type: Recreate'
has 'priorityClassName: system-cluster-critical'
has 'resourceNames: \[berth-webhook-tls\]'
lacks 'BERTH_KUBE_DATABASE_URL'
lacks 'kind: PrometheusRule'
rendered --set webhook.database.existingSecret=db --set webhook.replicas=3
has 'replicas: 3'
has 'type: RollingUpdate'
has 'BERTH_KUBE_DATABASE_URL'
has 'port: 5432'
rendered --set webhook.tls.mode=certManager
has 'cert-manager.io/inject-ca-from: berth-system/berth-webhook'
has '--no-install'
# Certificates are another's business then, and so are the rights for them.
lacks 'mutatingwebhookconfigurations'
lacks 'resources: \[secrets\]'
rendered --set scheduler.enabled=false
lacks 'berth-scheduler'
rendered --set webhook.enabled=false
lacks 'berth-webhook'
lacks 'kind: MutatingWebhookConfiguration'
rendered --set scheduler.wire.enabled=true --set scheduler.wire.tokenSecret=agents --set-string 'scheduler.policyToml=name = "mine"'
has '--wire-listen=0.0.0.0:10299'
has '--wire-token-file=/etc/berth-wire/token'
has 'secretName: agents'
has '--policy-config-map=berth-scheduler'
has 'name = "mine"'
has 'berth.dev/wire-client: "true"'
rendered --set scheduler.wire.enabled=true --set scheduler.wire.tokenSecret=agents --set-json 'scheduler.wire.from=[{"ipBlock":{"cidr":"10.0.0.0/16"}}]'
has 'cidr: 10.0.0.0/16'
lacks 'berth.dev/wire-client'
rendered --set metrics.podMonitor.enabled=true --set metrics.prometheusRule.enabled=true --set metrics.prometheusRule.labels.release=prom
has 'kind: PodMonitor'
has 'alert: BerthSchedulerNoLeader'
has '{{ $labels.pod }}'
rendered --set nameOverride=second --set scheduler.name=second --set criticalPodsQuota=10 --set commonLabels.team=a --set commonAnnotations.note=b
has 'resourceNames: \[second-webhook-tls\]'
has '--name=second'
lacks 'berth-webhook'
rendered --set 'webhook.otherControllers[0].apiGroup=argoproj.io' --set 'webhook.otherControllers[0].resource=rollouts'
has 'resources: \[rollouts, rollouts/scale\]'
refused 'accepted is 1 without PostgreSQL' --set webhook.replicas=2
refused 'scheduler.wire.tokenSecret is empty' --set scheduler.wire.enabled=true
refused 'wire.from' --set scheduler.wire.enabled=true --set scheduler.wire.tokenSecret=agents --set-json 'scheduler.wire.from=[]'
refused 'webhook.onInvalid' --set webhook.onInvalid=maybe
refused 'webhook.timeoutSeconds' --set webhook.timeoutSeconds=60
refused 'apiGroup' --set 'webhook.otherControllers[0].apiGroup=*' --set 'webhook.otherControllers[0].resource=rollouts'
refused 'wehbook' --set wehbook.enabled=false

if command -v kubectl >/dev/null; then
	kubectl kustomize deploy/kubernetes >"$folder/both.yaml"
	of_schema "$folder/both.yaml"
fi
promtool check rules "$chart/files/prometheus-rules.yaml" >/dev/null || fail 'the alerts are not of Prometheus'
promtool test rules tools/prometheus-rules-test.yaml >"$folder/said" || fail "$(cat "$folder/said")"
checks=$((checks + 2))
echo "$checks passed, 0 failed"
