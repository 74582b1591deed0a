{{/* config.yaml as the values describe it, before extraConfig. */}}
{{- define "sluice.generated" -}}
{{- $apisix := .Values.apisix }}
{{- $role := $apisix.deployment.role }}
apisix:
  {{- if ne $role "control_plane" }}
  node_listen:
    - port: {{ .Values.service.http.containerPort }}
    {{- with .Values.service.http.additionalContainerPorts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- if $apisix.setIDFromPodUID }}
  id: "${{ `{{POD_UID}}` }}"
  {{- end }}
  enable_admin: {{ $apisix.admin.enabled }}
  enable_control: {{ .Values.control.enabled }}
  {{- if .Values.control.enabled }}
  control:
    ip: {{ .Values.control.service.ip | quote }}
    port: {{ .Values.control.service.port }}
  {{- end }}
  status:
    ip: {{ $apisix.status.ip | quote }}
    port: {{ $apisix.status.port }}
  enable_ipv6: {{ $apisix.enableIPv6 }}
  enable_http2: {{ $apisix.enableHTTP2 }}
  enable_server_tokens: {{ $apisix.enableServerTokens }}
  router:
    http: {{ $apisix.router.http }}
  proxy_mode: {{ if not .Values.service.stream.enabled }}http{{ else if .Values.service.http.enabled }}http&stream{{ else }}stream{{ end }}
  {{- if and .Values.service.stream.enabled (or .Values.service.stream.tcp .Values.service.stream.udp) }}
  stream_proxy:
    {{- with .Values.service.stream.tcp }}
    tcp:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.service.stream.udp }}
    udp:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- with $apisix.dns.resolvers }}
  dns_resolver:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $apisix.dns.validity }}
  dns_resolver_valid: {{ . }}
  {{- end }}
  resolver_timeout: {{ $apisix.dns.timeout }}
  ssl:
    enable: {{ $apisix.ssl.enabled }}
    listen:
      - port: {{ $apisix.ssl.containerPort }}
        enable_http3: {{ $apisix.ssl.enableHTTP3 }}
      {{- with $apisix.ssl.additionalContainerPorts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ssl_protocols: {{ $apisix.ssl.sslProtocols | quote }}
    {{- with $apisix.ssl.sslCiphers }}
    ssl_ciphers: {{ . | quote }}
    {{- end }}
    {{- if $apisix.ssl.existingCASecret }}
    ssl_trusted_certificate: /etc/sluice-ca/{{ $apisix.ssl.certCAFilename }}
    {{- end }}
    {{- with $apisix.ssl.fallbackSNI }}
    fallback_sni: {{ . | quote }}
    {{- end }}
  {{- with $apisix.trustedAddresses }}
  trusted_addresses:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  proxy_cache:
    zones:
      - name: disk_cache_one
        memory_size: 50m
        disk_size: 1G
        disk_path: /var/lib/sluice/cache
        cache_levels: "1:2"
      - name: memory_cache
        memory_size: 50m

nginx_config:
  error_log: {{ $apisix.nginx.logs.errorLog | quote }}
  error_log_level: {{ $apisix.nginx.logs.errorLogLevel }}
  worker_processes: {{ $apisix.nginx.workerProcesses }}
  worker_shutdown_timeout: {{ max 1 (sub (.Values.shutdownSeconds | int) 5) }}s
  event:
    worker_connections: {{ $apisix.nginx.workerConnections }}
  http:
    enable_access_log: {{ $apisix.nginx.logs.enableAccessLog }}
    {{- if $apisix.nginx.logs.enableAccessLog }}
    access_log: {{ $apisix.nginx.logs.accessLog | quote }}
    {{- with $apisix.nginx.logs.accessLogFormat }}
    {{- /* Values for NGINX escape quotes; here the format is a text. */}}
    access_log_format: {{ . | replace "\\\"" "\"" | toJson }}
    {{- end }}
    access_log_format_escape: {{ $apisix.nginx.logs.accessLogFormatEscape }}
    {{- end }}
    keepalive_timeout: {{ $apisix.nginx.keepaliveTimeout | quote }}

{{- if $apisix.discovery.enabled }}
discovery:
  {{- range $key, $value := $apisix.discovery.registry }}
  {{ $key }}:
    {{- include "sluice.render" (dict "value" (default dict $value) "context" $) | nindent 4 }}
  {{- end }}
{{- end }}
{{- with $apisix.plugins }}
plugins:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $apisix.stream_plugins }}
stream_plugins:
  {{- toYaml . | nindent 2 }}
{{- end }}

plugin_attr:
  prometheus:
    enable_export_server: {{ $apisix.prometheus.enabled }}
    {{- if $apisix.prometheus.enabled }}
    export_addr:
      ip: 0.0.0.0
      port: {{ $apisix.prometheus.containerPort }}
    export_uri: {{ $apisix.prometheus.path }}
    metric_prefix: {{ $apisix.prometheus.metricPrefix }}
    {{- end }}

deployment:
  role: {{ $role }}
  role_{{ $role }}:
    config_provider: {{ include "sluice.provider" . }}
  admin:
    enable_admin_cors: {{ $apisix.admin.cors }}
    allow_admin:
      {{- toYaml (default (list "0.0.0.0/0" "::/0") $apisix.admin.allow.ipList) | nindent 6 }}
    admin_listen:
      ip: {{ $apisix.admin.ip | quote }}
      port: {{ $apisix.admin.port }}
    {{- if include "sluice.controlService" . }}
    # Names under which the Service of the control API is addressed.
    hosts:
      - {{ include "sluice.fullname" . }}-control.{{ .Release.Namespace }}
      - {{ include "sluice.fullname" . }}-control.{{ .Release.Namespace }}.svc
      - {{ include "sluice.fullname" . }}-control.{{ .Release.Namespace }}.svc.{{ .Values.etcd.clusterDomain }}
      {{- if .Values.control.ingress.enabled }}
      {{- range .Values.control.ingress.hosts }}
      - {{ .host | quote }}
      {{- end }}
      {{- end }}
    {{- end }}
    {{- if include "sluice.admin" . }}
    admin_key:
      - name: admin
        key: "${{ `{{APISIX_ADMIN_KEY}}` }}"
        role: admin
      - name: viewer
        key: "${{ `{{APISIX_VIEWER_KEY}}` }}"
        role: viewer
    {{- end }}
  {{- if eq (include "sluice.provider" .) "etcd" }}
  etcd:
    host:
      {{- if .Values.etcd.enabled }}
      - http://{{ include "sluice.fullname" . }}-etcd.{{ .Release.Namespace }}.svc.{{ .Values.etcd.clusterDomain }}:{{ .Values.etcd.service.port }}
      {{- else }}
      {{- toYaml .Values.externalEtcd.host | nindent 6 }}
      {{- end }}
    prefix: {{ .Values.etcd.prefix | quote }}
    timeout: {{ .Values.etcd.timeout }}
    {{- with include "sluice.etcdUser" . }}
    user: {{ . | quote }}
    password: "${{ `{{APISIX_ETCD_PASSWORD}}` }}"
    {{- end }}
    {{- if .Values.etcd.auth.tls.enabled }}
    tls:
      cert: /etc/sluice-etcd/{{ .Values.etcd.auth.tls.certFilename }}
      key: /etc/sluice-etcd/{{ .Values.etcd.auth.tls.certKeyFilename }}
      verify: {{ .Values.etcd.auth.tls.verify }}
      {{- with .Values.etcd.auth.tls.sni }}
      sni: {{ . | quote }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}

{{/* The config.yaml that pods get. */}}
{{- define "sluice.config" -}}
{{- if .Values.apisix.fullCustomConfig.enabled }}
{{- include "sluice.render" (dict "value" .Values.apisix.fullCustomConfig.config "context" $) }}
{{- else }}
{{- $config := include "sluice.generated" . | fromYaml }}
{{- if hasKey $config "Error" }}{{ fail $config.Error }}{{ end }}
{{- $config = mergeOverwrite $config (dict "plugin_attr" (deepCopy .Values.apisix.pluginAttrs)) }}
{{- mergeOverwrite $config (deepCopy .Values.apisix.extraConfig) | toYaml }}
{{- end }}
{{- end }}
