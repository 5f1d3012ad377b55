{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* A port of a container in the host network: (dict "name" NAME "port" PORT). */}}
{{- define "skep.hostPort" -}}
- name: {{ .name }}
  containerPort: {{ .port }}
  hostPort: {{ .port }}
  protocol: TCP
{{- end }}

{{/* A folder of the host: (dict "name" NAME "path" PATH "type" TYPE). */}}
{{- define "skep.hostVolume" -}}
- name: {{ .name }}
  hostPath:
    path: {{ .path }}
    type: {{ .type | default "DirectoryOrCreate" }}
{{- end }}

{{/* Security context and resources of an init container: (dict "ctx" . "add" CAPABILITIES "resources" VALUES). */}}
{{- define "skep.initSecurity" -}}
{{- $v := .ctx.Values }}
securityContext:
  {{- if $v.securityContext.privileged }}
  privileged: true
  {{- else }}
  {{- with $v.securityContext.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  capabilities:
    {{- with .add }}
    add:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    drop: [ALL]
  {{- end }}
terminationMessagePolicy: FallbackToLogsOnError
{{- with (.resources | default $v.initResources) }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Handler of the agent's probes: (dict "ctx" . "kubernetes" bool). */}}
{{- define "skep.agentProbe" -}}
{{- $v := .ctx.Values }}
{{- if (include "skep.derived" .ctx | fromJson).execProbes }}
exec:
  command: [/usr/bin/skep, status, --brief]
{{- else }}
httpGet:
  host: {{ ternary "127.0.0.1" "::1" (eq true $v.ipv4.enabled) | quote }}
  path: /healthz
  port: health
  scheme: HTTP
  httpHeaders:
    - name: brief
      value: "true"
    {{- if .kubernetes }}
    - name: require-k8s-connectivity
      value: {{ $v.livenessProbe.requireK8sConnectivity | quote }}
    {{- end }}
{{- end }}
{{- end }}

{{- define "skep.kubeconfigMount" -}}
{{- with .Values.kubeConfigPath }}
- name: kube-config
  mountPath: {{ . }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "skep.kubeconfigVolume" -}}
{{- with .Values.kubeConfigPath }}
{{ include "skep.hostVolume" (dict "name" "kube-config" "path" . "type" "FileOrCreate") }}
{{- end }}
{{- end }}

{{- define "skep.etcdMounts" -}}
- name: etcd-config-path
  mountPath: /var/lib/etcd-config
  readOnly: true
{{- if .Values.etcd.ssl }}
- name: etcd-secrets
  mountPath: /var/lib/etcd-secrets
  readOnly: true
{{- end }}
{{- end }}

{{- define "skep.etcdVolumes" -}}
- name: etcd-config-path
  configMap:
    name: cilium-config
    defaultMode: 0400
    items:
      - key: etcd-config
        path: etcd.config
{{- if .Values.etcd.ssl }}
- name: etcd-secrets
  secret:
    secretName: cilium-etcd-secrets
    defaultMode: 0400
    optional: true
{{- end }}
{{- end }}

{{/* Volumes of Hubble in the agent's pod: a list of {path, volume}. */}}
{{- define "skep.hubbleVolumes" -}}
{{- $d := include "skep.derived" . | fromJson }}
{{- $v := .Values }}
{{- if $d.hubbleTLS }}
- path: /var/lib/cilium/tls/hubble
  volume:
    name: hubble-tls
    projected:
      defaultMode: 0400
      sources:
        {{- include "skep.certSource" (dict "ctx" . "secret" ($v.hubble.tls.server.existingSecret | default "hubble-server-certs") "crt" "server.crt" "key" "server.key" "ca" "client-ca.crt") | nindent 8 }}
{{- end }}
{{- if $d.hubbleMetricsTLS }}
{{- $server := $v.hubble.metrics.tls.server }}
- path: /var/lib/cilium/tls/hubble-metrics
  volume:
    name: hubble-metrics-tls
    projected:
      defaultMode: 0400
      sources:
        {{- include "skep.certSource" (dict "ctx" . "secret" ($server.existingSecret | default "hubble-metrics-server-certs") "crt" "server.crt" "key" "server.key") | nindent 8 }}
        {{- if $server.mtls.enabled }}
        {{- $bundle := $v.tls.caBundle }}
        {{- /* Authority of clients: of its own, that of the bundle, or that of the server's certificate. */}}
        {{- $kind := ternary "secret" "configMap" (or (eq true $server.mtls.useSecret) (and (not $server.mtls.name) (not $bundle.enabled))) }}
        {{- $name := $server.existingSecret | default "hubble-metrics-server-certs" }}
        {{- $key := $server.mtls.key }}
        {{- if $server.mtls.name }}{{ $name = $server.mtls.name }}
        {{- else if $bundle.enabled }}
        {{- $kind = ternary "secret" "configMap" (eq true $bundle.useSecret) }}
        {{- $name = $bundle.name }}
        {{- $key = $bundle.key }}
        {{- end }}
        - {{ $kind }}:
            name: {{ $name }}
            optional: true
            items:
              - key: {{ $key }}
                path: client-ca.crt
        {{- end }}
{{- end }}
{{- if and $d.hubbleMetrics $v.hubble.metrics.dynamic.enabled }}
- path: /dynamic-metrics-config
  volume:
    name: hubble-dynamic-metrics-config
    configMap:
      name: {{ $v.hubble.metrics.dynamic.config.configMapName }}
      optional: true
{{- end }}
{{- if $d.hubbleFlowLogs }}
- path: /flowlog-config
  volume:
    name: hubble-flowlog-config
    configMap:
      name: {{ $v.hubble.export.dynamic.config.configMapName }}
      optional: true
{{- end }}
{{- end }}
