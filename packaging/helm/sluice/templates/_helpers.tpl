{{- define "sluice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "sluice.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sluice.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "sluice.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sluice.selectorLabels" -}}
{{- if .Values.service.labelsOverride }}
{{- tpl (.Values.service.labelsOverride | toYaml) . }}
{{- else }}
app.kubernetes.io/name: {{ include "sluice.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- end }}

{{- define "sluice.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "sluice.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Renders a value that may contain templates. */}}
{{- define "sluice.render" -}}
{{- if typeIs "string" .value }}
{{- tpl .value .context }}
{{- else }}
{{- tpl (.value | toYaml) .context }}
{{- end }}
{{- end }}

{{/* The provider of resources: embedded, etcd or yaml. */}}
{{- define "sluice.provider" -}}
{{- $etcd := or .Values.etcd.enabled .Values.externalEtcd.host }}
{{- if eq .Values.apisix.deployment.mode "standalone" -}}
yaml
{{- else if ne .Values.apisix.deployment.role "traditional" -}}
etcd
{{- else if .Values.apisix.deployment.role_traditional.config_provider -}}
{{ .Values.apisix.deployment.role_traditional.config_provider }}
{{- else -}}
{{ ternary "etcd" "embedded" (not (empty $etcd)) }}
{{- end }}
{{- end }}

{{/* Not empty if apisix.yaml is a file of a ConfigMap. */}}
{{- define "sluice.standalone" -}}
{{- if eq .Values.apisix.deployment.mode "standalone" }}true{{ end }}
{{- end }}

{{/* Not empty if the Admin API is served. */}}
{{- define "sluice.admin" -}}
{{- if and .Values.apisix.admin.enabled (ne .Values.apisix.deployment.role "data_plane") }}true{{ end }}
{{- end }}

{{/* Not empty if the control API is served on an address that a Service reaches. */}}
{{- define "sluice.controlService" -}}
{{- $ip := .Values.control.service.ip | toString }}
{{- if and .Values.control.enabled (not (hasPrefix "127." $ip)) (ne $ip "::1") (ne $ip "[::1]") }}true{{ end }}
{{- end }}

{{/* Not empty if the data folder is a volume that survives the pod. */}}
{{- define "sluice.claim" -}}
{{- if and (eq (include "sluice.provider" .) "embedded") .Values.persistence.enabled (not .Values.useDaemonSet) }}
{{- default (printf "%s-data" (include "sluice.fullname" .)) .Values.persistence.existingClaim }}
{{- end }}
{{- end }}

{{- define "sluice.adminSecret" -}}
{{- default (printf "%s-admin" (include "sluice.fullname" .)) .Values.apisix.admin.credentials.secretName }}
{{- end }}

{{- define "sluice.etcdUser" -}}
{{- if and (eq (include "sluice.provider" .) "etcd") (not .Values.etcd.enabled) }}{{ .Values.externalEtcd.user }}{{ end }}
{{- end }}

{{- define "sluice.etcdSecret" -}}
{{- default (printf "%s-etcd" (include "sluice.fullname" .)) .Values.externalEtcd.existingSecret }}
{{- end }}

{{/* The last part of an address such as 127.0.0.1:9100. */}}
{{- define "sluice.port" -}}
{{- if kindIs "map" . }}{{ splitList ":" (.addr | toString) | last }}{{ else }}{{ splitList ":" (. | toString) | last }}{{ end }}
{{- end }}
