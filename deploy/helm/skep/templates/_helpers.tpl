{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Namespace of all objects. */}}
{{- define "skep.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* Labels of an object, as YAML: (dict "ctx" . "name" NAME "more" LABELS). */}}
{{- define "skep.labels" -}}
{{- $labels := dict "app.kubernetes.io/part-of" "cilium" "helm.sh/chart" (printf "%s-%s" .ctx.Chart.Name .ctx.Chart.Version | replace "+" "_" | trunc 63) }}
{{- with .name }}{{ $_ := set $labels "app.kubernetes.io/name" . }}{{ end }}
{{- merge (dict) (.more | default dict) $labels (.ctx.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{/* Labels of a pod: those of an object without the chart, which would restart pods at each version. */}}
{{- define "skep.podLabels" -}}
{{- $labels := dict "app.kubernetes.io/part-of" "cilium" "app.kubernetes.io/name" .name }}
{{- merge (dict) (.own | default dict) (.more | default dict) $labels (.ctx.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{/* Metadata of an object: (dict "ctx" . "name" NAME "app" APP "labels" LABELS "annotations" ANNOTATIONS "cluster" true). */}}
{{- define "skep.metadata" -}}
metadata:
  name: {{ .name }}
  {{- if not .cluster }}
  namespace: {{ .namespace | default (include "skep.namespace" .ctx) }}
  {{- end }}
  labels:
    {{- include "skep.labels" (dict "ctx" .ctx "name" .app "more" .labels) | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Metadata of a ConfigMap that programs read: (dict "ctx" . "name" NAME). */}}
{{- define "skep.plainMetadata" -}}
metadata:
  name: {{ .name }}
  namespace: {{ include "skep.namespace" .ctx }}
  {{- with .ctx.Values.commonLabels }}
  labels:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Reference of an image: (dict "image" VALUES "ctx" . "suffix" SUFFIX "digest" DIGEST). */}}
{{- define "skep.image" -}}
{{- $image := .image }}
{{- if $image.override }}{{ $image.override }}
{{- else }}
{{- $digest := .digest | default $image.digest }}
{{- $image.repository }}{{ .suffix }}:{{ $image.tag | default .ctx.Chart.AppVersion }}{{ if and $image.useDigest $digest }}@{{ $digest }}{{ end }}
{{- end }}
{{- end }}

{{- define "skep.agentImage" -}}
image: {{ include "skep.image" (dict "image" .Values.image "ctx" .) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* Priority class: (dict "ctx" . "name" VALUE "critical" CLASS). */}}
{{- define "skep.priorityClass" -}}
{{- if .name }}
priorityClassName: {{ .name }}
{{- else if and .ctx.Values.enableCriticalPriorityClass .critical }}
priorityClassName: {{ .critical }}
{{- end }}
{{- end }}

{{/* Whether the API server is of a version: (dict "ctx" . "range" ">=1.30-0"). */}}
{{- define "skep.kubernetes" -}}
{{- if semverCompare .range .ctx.Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{/* User namespace of pods in the host network. */}}
{{- define "skep.hostUsers" -}}
{{- if include "skep.kubernetes" (dict "ctx" . "range" ">=1.33-0") }}
hostUsers: true
{{- end }}
{{- end }}

{{/* Security context of a pod; AppArmor is an annotation before Kubernetes 1.30: (dict "ctx" . "context" VALUES). */}}
{{- define "skep.podSecurity" -}}
{{- $context := deepCopy (.context | default dict) }}
{{- if not (include "skep.kubernetes" (dict "ctx" .ctx "range" ">=1.30-0")) }}{{ $context = omit $context "appArmorProfile" }}{{ end }}
{{- with $context }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* AppArmor annotations of old API servers: (dict "ctx" . "context" VALUES "containers" LIST). */}}
{{- define "skep.appArmor" -}}
{{- if and (not (include "skep.kubernetes" (dict "ctx" .ctx "range" ">=1.30-0"))) (.context | default dict).appArmorProfile }}
{{- range .containers }}
container.apparmor.security.beta.kubernetes.io/{{ . }}: unconfined
{{- end }}
{{- end }}
{{- end }}

{{/* Scheduling of a pod, of the values of its component. */}}
{{- define "skep.placement" -}}
{{- range $field := list "affinity" "nodeSelector" "tolerations" "topologySpreadConstraints" "dnsPolicy" }}
{{- with index $.values $field }}
{{- if eq $field "topologySpreadConstraints" }}
topologySpreadConstraints:
  {{- range . }}
  - {{ toYaml (merge (dict) . (dict "labelSelector" (dict "matchLabels" $.selector))) | nindent 4 | trim }}
  {{- end }}
{{- else if kindIs "string" . }}
{{ $field }}: {{ . }}
{{- else }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "skep.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Strategy of a workload: fields of RollingUpdate belong to that type only. */}}
{{- define "skep.strategy" -}}
type: {{ .type }}
{{- if eq (toString .type) "RollingUpdate" }}
{{- with .rollingUpdate }}
rollingUpdate:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Address of the API server, without a Service: host, port. `auto` reads ConfigMap cluster-info. */}}
{{- define "skep.apiServer" -}}
{{- if eq (toString .Values.k8sServiceHost) "auto" }}
{{- $namespace := .Values.k8sServiceLookupNamespace | default "kube-public" }}
{{- $name := .Values.k8sServiceLookupConfigMapName | default "cluster-info" }}
{{- $info := lookup "v1" "ConfigMap" $namespace $name }}
{{- if not $info }}{{ fail (printf "k8sServiceHost=auto: there is no ConfigMap %s/%s; create it, or set k8sServiceHost and k8sServicePort" $namespace $name) }}{{ end }}
{{- $kubeconfig := (get $info.data "kubeconfig") | fromYaml }}
{{- $url := urlParse (first $kubeconfig.clusters).cluster.server }}
{{- $parts := regexSplit ":([0-9]+)$" $url.host 2 }}
{{- dict "host" (first $parts | trimAll "[]") "port" (regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default "443") | toJson }}
{{- else }}
{{- dict "host" (toString .Values.k8sServiceHost) "port" (include "skep.text" (dict "value" .Values.k8sServicePort)) | toJson }}
{{- end }}
{{- end }}

{{/* Variables with the address of the API server. */}}
{{- define "skep.apiServerEnv" -}}
{{- $address := include "skep.apiServer" . | fromJson }}
{{- if and .Values.k8sServiceHostRef.name .Values.k8sServiceHostRef.key }}
- name: KUBERNETES_SERVICE_HOST
  valueFrom:
    configMapKeyRef:
      name: {{ .Values.k8sServiceHostRef.name }}
      key: {{ .Values.k8sServiceHostRef.key }}
{{- else if $address.host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ $address.host | quote }}
{{- end }}
{{- if $address.port }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $address.port | quote }}
{{- end }}
{{- end }}

{{- define "skep.nodeEnv" -}}
- name: K8S_NODE_NAME
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: spec.nodeName
- name: CILIUM_K8S_NAMESPACE
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: metadata.namespace
{{- end }}

{{/* Mounts of extraHostPathMounts and extraVolumeMounts, of the values of a component. */}}
{{- define "skep.extraMounts" -}}
{{- range .extraHostPathMounts }}
- name: {{ .name }}
  mountPath: {{ .mountPath }}
  {{- if hasKey . "readOnly" }}
  readOnly: {{ .readOnly }}
  {{- end }}
  {{- with .mountPropagation }}
  mountPropagation: {{ . }}
  {{- end }}
{{- end }}
{{- with .extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "skep.extraVolumes" -}}
{{- range .extraHostPathMounts }}
- name: {{ .name }}
  hostPath:
    path: {{ .hostPath }}
    {{- with .hostPathType }}
    type: {{ . }}
    {{- end }}
{{- end }}
{{- with .extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* ServiceAccount: (dict "ctx" . "account" VALUES). */}}
{{- define "skep.serviceAccount" -}}
{{- if .account.create }}
apiVersion: v1
kind: ServiceAccount
{{ include "skep.metadata" (dict "ctx" .ctx "name" .account.name "annotations" .annotations) }}
{{- if hasKey . "automount" }}
automountServiceAccountToken: {{ .automount }}
{{- end }}
{{- end }}
{{- end }}

{{/* A role and its binding to a ServiceAccount: (dict "ctx" . "name" NAME "binding" NAME "account" NAME "rules" YAML
     "namespace" NAMESPACE "cluster" bool "annotations" ANNOTATIONS "subjectNamespace" NAMESPACE). */}}
{{- define "skep.role" -}}
{{- $kind := ternary "ClusterRole" "Role" (.cluster | default false) }}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
{{ include "skep.metadata" . }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
{{ include "skep.metadata" (merge (dict "name" (.binding | default .name)) .) }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ .subjectNamespace | default (include "skep.namespace" .ctx) }}
{{- end }}

{{/* PodDisruptionBudget: (dict "ctx" . "name" NAME "budget" VALUES "selector" LABELS). Only one of the two limits is allowed. */}}
{{- define "skep.disruptionBudget" -}}
{{- if .budget.enabled }}
apiVersion: policy/v1
kind: PodDisruptionBudget
{{ include "skep.metadata" . }}
spec:
  {{- if kindIs "invalid" .budget.minAvailable }}
  {{- if not (kindIs "invalid" .budget.maxUnavailable) }}
  maxUnavailable: {{ .budget.maxUnavailable }}
  {{- end }}
  {{- else }}
  minAvailable: {{ .budget.minAvailable }}
  {{- end }}
  {{- if and .budget.unhealthyPodEvictionPolicy (include "skep.kubernetes" (dict "ctx" .ctx "range" ">=1.27-0")) }}
  unhealthyPodEvictionPolicy: {{ .budget.unhealthyPodEvictionPolicy }}
  {{- end }}
  selector:
    matchLabels:
      {{- toYaml .selector | nindent 6 }}
{{- end }}
{{- end }}

{{/* ServiceMonitor: (dict "ctx" . "name" NAME "app" APP "monitor" VALUES "selector" LABELS "endpoints" LIST "targetLabels" LIST).
     Each endpoint: port, and the values of its interval and relabelings. */}}
{{- define "skep.serviceMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
{{ include "skep.metadata" (dict "ctx" .ctx "name" .name "app" .app "labels" .monitor.labels "annotations" .annotations "namespace" (.monitor.namespace | default (include "skep.namespace" .ctx))) }}
spec:
  selector:
    matchLabels:
      {{- toYaml .selector | nindent 6 }}
  namespaceSelector:
    matchNames:
      - {{ include "skep.namespace" .ctx }}
  endpoints:
    {{- range .endpoints }}
    - port: {{ .port }}
      interval: {{ .values.interval | quote }}
      {{- if and .values.scrapeTimeout (not .noTimeout) }}
      scrapeTimeout: {{ .values.scrapeTimeout | quote }}
      {{- end }}
      {{- if not .noHonor }}
      honorLabels: true
      {{- end }}
      path: /metrics
      {{- with .scheme }}
      scheme: {{ . }}
      {{- end }}
      {{- with .tls }}
      tlsConfig:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.relabelings }}
      relabelings:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.metricRelabelings }}
      metricRelabelings:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
  {{- with .targetLabels }}
  targetLabels:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .jobLabel }}
  jobLabel: {{ . }}
  {{- end }}
{{- end }}

{{/* Text of a value, as in a ConfigMap: (dict "value" VALUE "join" SEPARATOR). */}}
{{- define "skep.text" -}}
{{- if kindIs "string" .value }}{{ .value }}
{{- else if kindIs "invalid" .value }}
{{- else if kindIs "slice" .value }}
{{- $parts := list }}{{ range .value }}{{ $parts = append $parts (include "skep.text" (dict "value" .)) }}{{ end }}
{{- join (.join | default " ") $parts }}
{{- else if and (kindIs "map" .value) (empty .value) }}
{{- else }}{{ toJson .value }}
{{- end }}
{{- end }}

{{/* Labels as `a=b,c=d`. */}}
{{- define "skep.selector" -}}
{{- $parts := list }}{{ range $k, $v := . }}{{ $parts = append $parts (printf "%s=%s" $k (toString $v)) }}{{ end }}
{{- join "," $parts }}
{{- end }}

{{/* Whether the first installed version is below one: (dict "ctx" . "version" "1.16"). */}}
{{- define "skep.olderThan" -}}
{{- with .ctx.Values.upgradeCompatibility }}
{{- if semverCompare (printf "<%s-0" $.version) (toString . | trimPrefix "v") }}true{{ end }}
{{- end }}
{{- end }}
