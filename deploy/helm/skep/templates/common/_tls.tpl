{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Certificate authority of the release as JSON {cert, key} in PEM: of the values, else the one in the cluster, else a new one. */}}
{{- define "skep.ca" -}}
{{- if not (hasKey .Values "_ca") }}
{{- $ca := .Values.tls.ca }}
{{- $live := lookup "v1" "Secret" (include "skep.namespace" .) "cilium-ca" }}
{{- $made := "" }}
{{- if $ca.cert }}{{ $made = dict "cert" (b64dec $ca.cert) "key" (b64dec $ca.key) }}
{{- else if and $live (get $live.data "ca.crt") (get $live.data "ca.key") }}{{ $made = dict "cert" (b64dec (get $live.data "ca.crt")) "key" (b64dec (get $live.data "ca.key")) }}
{{- else }}{{ $new := genCA "Cilium CA" (int $ca.certValidityDuration) }}{{ $made = dict "cert" $new.Cert "key" $new.Key }}
{{- end }}
{{- $_ := set .Values "_ca" (toJson $made) }}
{{- end }}
{{- .Values._ca }}
{{- end }}

{{/* Labels and annotations of generated Secrets: each rendering makes other contents. */}}
{{- define "skep.generated" -}}
labels:
  {{- include "skep.labels" (dict "ctx" . "more" (dict "cilium.io/helm-template-non-idempotent" "true")) | nindent 2 }}
{{- with .Values.nonIdempotentAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A certificate in a Secret: (dict "ctx" . "cert" CERTIFICATE "days" DAYS "reuse" bool). CERTIFICATE: name, cn, dns, ips, and
     cert and key in base64 if they are given. */}}
{{- define "skep.certSecret" -}}
{{- $ca := include "skep.ca" .ctx | fromJson }}
{{- $crt := .cert.cert | default "" }}
{{- $key := .cert.key | default "" }}
{{- if not $crt }}
{{- $live := ternary (lookup "v1" "Secret" (include "skep.namespace" .ctx) .cert.name) dict (eq true .reuse) }}
{{- if and $live $live.data (get $live.data "tls.crt") (get $live.data "tls.key") }}
{{- $crt = get $live.data "tls.crt" }}
{{- $key = get $live.data "tls.key" }}
{{- else }}
{{- $authority := buildCustomCert (b64enc $ca.cert) (b64enc $ca.key) }}
{{- $made := genSignedCert .cert.cn (.cert.ips | default list) (.cert.dns | default list) (int .days) $authority }}
{{- $crt = b64enc $made.Cert }}
{{- $key = b64enc $made.Key }}
{{- end }}
{{- end }}
apiVersion: v1
kind: Secret
metadata:
  name: {{ .cert.name }}
  namespace: {{ include "skep.namespace" .ctx }}
  {{- include "skep.generated" .ctx | nindent 2 }}
type: kubernetes.io/tls
data:
  ca.crt: {{ b64enc $ca.cert }}
  tls.crt: {{ $crt }}
  tls.key: {{ $key }}
{{- end }}

{{/* A certificate by cert-manager: (dict "ctx" . "cert" CERTIFICATE "auto" VALUES "hubble" bool). */}}
{{- define "skep.certManager" -}}
apiVersion: cert-manager.io/v1
kind: Certificate
{{ include "skep.metadata" (dict "ctx" .ctx "name" .cert.name "annotations" .annotations) }}
spec:
  issuerRef:
    {{- toYaml .auto.certManagerIssuerRef | nindent 4 }}
  {{- with .auto.subject }}
  subject:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $privateKey := merge (dict) (.auto.privateKey | default dict) (ternary (dict "rotationPolicy" "Always") dict (eq true .hubble)) }}
  {{- with $privateKey }}
  privateKey:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  secretName: {{ .cert.name }}
  commonName: {{ .cert.cn | quote }}
  {{- with .cert.dns }}
  dnsNames:
    {{- range . }}
    - {{ . | quote }}
    {{- end }}
  {{- end }}
  {{- with .cert.ips }}
  ipAddresses:
    {{- range . }}
    - {{ . | quote }}
    {{- end }}
  {{- end }}
  duration: {{ printf "%dh0m0s" (mul (int .auto.certValidityDuration) 24) | quote }}
  {{- if .hubble }}
  isCA: false
  usages:
    - signing
    - key encipherment
    {{- range .cert.usage }}
    - {{ . }}
    {{- end }}
  {{- end }}
{{- end }}

{{/* Job and CronJob that generate certificates: (dict "ctx" . "name" NAME "account" VALUES "auto" VALUES "certs" LIST
     "podLabels" LABELS "annotations" ANNOTATIONS "cronAnnotations" ANNOTATIONS). */}}
{{- define "skep.certJobs" -}}
{{- $spec := include "skep.certJobSpec" . }}
{{- $labels := dict "k8s-app" .name }}
apiVersion: batch/v1
kind: Job
{{ include "skep.metadata" (dict "ctx" .ctx "name" (printf "%s-%s" .name ($spec | sha256sum | trunc 10)) "app" .name "labels" $labels "annotations" .jobAnnotations) }}
spec:
  {{- $spec | nindent 2 }}
{{- if .auto.schedule }}
---
apiVersion: batch/v1
kind: CronJob
{{ include "skep.metadata" (dict "ctx" .ctx "name" .name "app" .name "labels" $labels "annotations" .cronAnnotations) }}
spec:
  schedule: {{ .auto.schedule | quote }}
  concurrencyPolicy: Forbid
  successfulJobsHistoryLimit: {{ .ctx.Values.certgen.cronJob.successfulJobsHistoryLimit }}
  failedJobsHistoryLimit: {{ .ctx.Values.certgen.cronJob.failedJobsHistoryLimit }}
  jobTemplate:
    spec:
      {{- $spec | nindent 6 }}
{{- end }}
---
{{ include "skep.serviceAccount" (dict "ctx" .ctx "account" .account "annotations" (merge (dict) .account.annotations (.annotations | default dict))) }}
{{- /* As in the original, whose users rely on it: the Role of the mesh stays without rbac.create. */}}
{{- if or (ne .name "hubble-generate-certs") (and .ctx.Values.rbac.create .account.create) }}
---
{{ include "skep.role" (dict "ctx" .ctx "name" .name "account" .account.name "annotations" .annotations "rules" (include "skep.certJobRules" .)) }}
{{- end }}
{{- end }}

{{- define "skep.certJobRules" }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames:
    {{- range .certs }}
    - {{ .name }}
    {{- end }}
  verbs: [update]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [cilium-ca]
  verbs: [get, update]
{{- end }}

{{- define "skep.certJobSpec" -}}
{{- $v := .ctx.Values }}
{{- $g := $v.certgen }}
{{- $ctx := .ctx }}
{{- $certs := list }}
{{- range .certs }}
{{- $cert := dict "name" .name "namespace" (include "skep.namespace" $ctx) "commonName" .cn "usage" (concat (list "signing" "key encipherment") .usage) "validity" (printf "%dh" (mul (int $.auto.certValidityDuration) 24)) }}
{{- $hosts := concat (.dns | default list) (.ips | default list) }}
{{- with (.hosts | default $hosts) }}{{ $_ := set $cert "hosts" . }}{{ end }}
{{- $certs = append $certs $cert }}
{{- end }}
{{- with $g.ttlSecondsAfterFinished }}
ttlSecondsAfterFinished: {{ . }}
{{- end }}
template:
  metadata:
    labels:
      k8s-app: {{ .name }}
      {{- with .podLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with $v.commonLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    hostNetwork: false
    restartPolicy: OnFailure
    serviceAccountName: {{ .account.name }}
    automountServiceAccountToken: {{ .account.automount }}
    {{- include "skep.priorityClass" (dict "ctx" .ctx "name" $g.priorityClassName) | nindent 4 }}
    {{- include "skep.pullSecrets" .ctx | nindent 4 }}
    {{- include "skep.placement" (dict "values" (pick $g "affinity" "nodeSelector" "tolerations")) | nindent 4 }}
    securityContext:
      seccompProfile:
        type: RuntimeDefault
    containers:
      - name: certgen
        image: {{ include "skep.image" (dict "image" $g.image "ctx" .ctx) | quote }}
        imagePullPolicy: {{ $g.image.pullPolicy }}
        command: [/usr/bin/cilium-certgen]
        args:
          - --ca-generate={{ $g.generateCA }}
          - --ca-reuse-secret
          - --ca-secret-namespace={{ include "skep.namespace" .ctx }}
          - --ca-secret-name=cilium-ca
          - --ca-common-name=Cilium CA
          - --ca-enforce-validity-throughout-leaves-duration={{ $g.enforceCAValidityThroughoutLeavesDuration }}
          {{- if $v.debug.enabled }}
          - --debug
          {{- end }}
        env:
          - name: CILIUM_CERTGEN_CONFIG
            value: {{ dict "certs" $certs | toYaml | quote }}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities:
            drop: [ALL]
        {{- with $g.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with $g.extraVolumeMounts }}
        volumeMounts:
          {{- toYaml . | nindent 10 }}
        {{- end }}
    {{- with $g.extraVolumes }}
    volumes:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}

{{/* Source of a projected volume: (dict "ctx" . "secret" NAME "crt" FILE "key" FILE "ca" FILE "optional" bool). The authority is that
     of tls.caBundle if there is one. */}}
{{- define "skep.certSource" -}}
{{- $bundle := .ctx.Values.tls.caBundle }}
- secret:
    name: {{ .secret }}
    {{- if ne false .optional }}
    optional: true
    {{- end }}
    items:
      - key: tls.crt
        path: {{ .crt }}
      - key: tls.key
        path: {{ .key }}
      {{- if and .ca (not $bundle.enabled) }}
      - key: ca.crt
        path: {{ .ca }}
      {{- end }}
{{- if and .ca $bundle.enabled }}
- {{ ternary "secret" "configMap" (eq true $bundle.useSecret) }}:
    name: {{ $bundle.name }}
    {{- if ne false .optional }}
    optional: true
    {{- end }}
    items:
      - key: {{ $bundle.key }}
        path: {{ .ca }}
{{- end }}
{{- end }}
