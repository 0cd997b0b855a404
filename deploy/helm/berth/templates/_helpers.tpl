{{/* Names of the two parts. */}}
{{- define "berth.webhook" -}}{{ .Values.nameOverride }}-webhook{{- end }}
{{- define "berth.scheduler" -}}{{ .Values.nameOverride }}-scheduler{{- end }}

{{/* Labels of a part's objects: (dict "root" . "name" NAME). */}}
{{- define "berth.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: berth
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- with merge (dict) (default dict .labels) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Name, labels and annotations of an object that has a namespace, or has none: (dict "root" . "name" NAME "cluster" true). */}}
{{- define "berth.metadata" -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels:
  {{- include "berth.labels" . | nindent 2 }}
{{- with merge (dict) (default dict .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "berth.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "berth.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* One with the embedded database: two would count apart. */}}
{{- define "berth.webhookReplicas" -}}
{{- $shared := not (empty .Values.webhook.database.existingSecret) }}
{{- $replicas := int .Values.webhook.replicas }}
{{- if eq $replicas 0 }}{{ $replicas = ternary 2 1 $shared }}{{ end }}
{{- if and (gt $replicas 1) (not $shared) }}
{{- fail (printf "webhook.replicas is %d; accepted is 1 without PostgreSQL, or name a Secret with its URL in webhook.database.existingSecret" $replicas) }}
{{- end }}
{{- $replicas }}
{{- end }}

{{/* Namespaces whose pods are never looked at. */}}
{{- define "berth.excludedNamespaces" -}}
{{- concat (list .Release.Namespace "kube-node-lease" "kube-public" "kube-system") .Values.webhook.excludeNamespaces | uniq | sortAlpha | toJson }}
{{- end }}

{{/* What both pods have in common: (dict "root" . "name" NAME "part" PART). */}}
{{- define "berth.pod" -}}
serviceAccountName: {{ .name }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
terminationGracePeriodSeconds: 30
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- if .part.topologySpreadConstraints }}
  {{- toYaml .part.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- $selector := include "berth.selector" . }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end }}

{{- define "berth.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "berth.env" -}}
- name: BERTH_KUBE_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: BERTH_KUBE_IDENTITY
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end }}

{{- define "berth.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "berth.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .root.Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "berth.selector" . | nindent 6 }}
{{- end }}

{{/* DNS and the API server. */}}
{{- define "berth.egress" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
# The API server, behind its Service and directly.
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - port: {{ . }}
    {{- end }}
{{- end }}

{{/* A binding of a role to a part's account: (dict "root" . "name" NAME "kind" KIND). */}}
{{- define "berth.subject" -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}
