{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* What the values do not do: unsupported ones that were let through, those without effect, unknown ones, defaults that matter. A JSON list. */}}
{{- define "skep.warnings" -}}
{{- $v := .Values }}
{{- $d := include "skep.derived" . | fromJson }}
{{- $lines := list }}
{{- range include "skep.unsupported" . | fromJsonArray }}{{ $lines = append $lines (printf "not supported: %s" .) }}{{ end }}
{{- $known := .Files.Get "files/known.json" | fromJson }}
{{- $values := omit (mustToJson .Values | mustFromJson) "_derived" "_config" "_ca" "global" }}
{{- range $entry := $known.noEffect }}
{{- $value := $values }}
{{- range first $entry }}{{ if kindIs "map" $value }}{{ $value = index $value . }}{{ end }}{{ end }}
{{- if not (kindIs "invalid" $value) }}
{{- $path := join "." (first $entry) }}
{{- if ne (toJson $value) (toJson (index $known.defaults $path)) }}{{ $lines = append $lines (printf "%s has no effect: %s" $path (last $entry)) }}{{ end }}
{{- end }}
{{- end }}
{{- $lines = concat $lines (include "skep.unknown" (dict "values" $values "prefix" "" "known" $known) | fromJsonArray) }}
{{- if and $d.agent $d.ipv4Masquerade (ne true $v.bpf.masquerade) }}{{ $lines = append $lines "enableIPv4Masquerade is on, and bpf.masquerade is not: traffic is not masqueraded; set bpf.masquerade=true, or enableIPv4Masquerade=false" }}{{ end }}
{{- if and $d.replacesKubeProxy (not $v.k8sServiceHost) (not $v.k8sServiceHostRef.name) (not $v.k8s.apiServerURLs) }}{{ $lines = append $lines "kubeProxyReplacement=true without k8sServiceHost: agents reach the API server only while kube-proxy runs" }}{{ end }}
{{- if and $d.internalMesh $v.clustermesh.apiserver.tls.auto.enabled (eq $v.clustermesh.apiserver.tls.auto.method "helm") }}{{ $lines = append $lines (printf "certificates of the mesh end in %d days, and are renewed by upgrades only; methods cronJob and certmanager renew them" (int $v.clustermesh.apiserver.tls.auto.certValidityDuration)) }}{{ end }}
{{- if and $d.hubbleTLS (not $v.hubble.tls.auto.enabled) (not $v.tls.ca.cert) (not $v.hubble.tls.server.existingSecret) }}{{ $lines = append $lines "hubble.tls.auto.enabled=false without tls.ca.cert: ca.crt of the Secrets is not the authority of the given certificates" }}{{ end }}
{{- if $d.relay }}{{ range $known.noEffect }}{{ if eq (join "." (first .)) "hubble.enabled" }}{{ $lines = append $lines "hubble.relay.enabled: this release has no relay, and agents serve no flows" }}{{ end }}{{ end }}{{ end }}
{{- if and $d.relay (not $v.hubble.relay.tls.server.enabled) }}{{ $lines = append $lines "the relay serves without TLS: set hubble.relay.tls.server.enabled=true" }}{{ end }}
{{- if $v.hubble.ui.enabled }}{{ $lines = append $lines "hubble.ui is not part of this chart: install it on its own, with the address hubble-relay" }}{{ end }}
{{- toJson $lines }}
{{- end }}

{{/* Values that the chart does not know: (dict "values" MAP "prefix" PATH "known" KNOWN). Objects of Kubernetes may have any fields. */}}
{{- define "skep.unknown" -}}
{{- $lines := list }}
{{- range $key, $value := .values }}
{{- $path := printf "%s%s" $.prefix $key }}
{{- if hasKey $.known.defaults $path }}
{{- else if not (hasKey $.known.groups $path) }}{{ $lines = append $lines (printf "%s is not a value of this chart: misspelt, or of an old chart" $path) }}
{{- else if and (kindIs "map" $value) (not (regexMatch "([nN]odeSelector|[aA]ffinity|[sS]ecurityContext|resources|rollingUpdate|ipMasqAgent.config|logOptions)$" $path)) }}
{{- $lines = concat $lines (include "skep.unknown" (dict "values" $value "prefix" (printf "%s." $path) "known" $.known) | fromJsonArray) }}
{{- end }}
{{- end }}
{{- toJson $lines }}
{{- end }}
