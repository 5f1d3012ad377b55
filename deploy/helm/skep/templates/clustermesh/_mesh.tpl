{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Enabled remote clusters, as a JSON list: name, address, ips, port, tls. */}}
{{- define "skep.clusters" -}}
{{- $clusters := list }}
{{- $given := .Values.clustermesh.config.clusters }}
{{- if kindIs "map" $given }}
{{- range $name, $cluster := $given }}{{ $clusters = append $clusters (merge (dict "name" $name) ($cluster | default dict)) }}{{ end }}
{{- else }}{{ $clusters = $given | default list }}
{{- end }}
{{- $enabled := list }}
{{- range $clusters }}{{ if ne false (index . "enabled") }}{{ $enabled = append $enabled . }}{{ end }}{{ end }}
{{- toJson $enabled }}
{{- end }}

{{/* Names of remote clusters with fixed addresses: (dict "ctx" . "direct" bool), `direct` if the pod connects to remote clusters. */}}
{{- define "skep.hostAliases" -}}
{{- $mesh := .ctx.Values.clustermesh }}
{{- $aliases := list }}
{{- if and .direct $mesh.config.enabled (not $mesh.disableKubernetesHostAliases) }}
{{- range $cluster := include "skep.clusters" .ctx | fromJsonArray }}
{{- range $cluster.ips }}{{ $aliases = append $aliases (dict "ip" . "hostnames" (list (printf "%s.%s" $cluster.name $mesh.config.domain))) }}{{ end }}
{{- end }}
{{- end }}
{{- with $aliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Volume of the client configurations and certificates of remote clusters, for agents and operators. */}}
{{- define "skep.meshSecrets" -}}
projected:
  defaultMode: 0400
  sources:
    - secret:
        name: cilium-clustermesh
        optional: true
    {{- include "skep.certSource" (dict "ctx" . "secret" "clustermesh-apiserver-remote-cert" "crt" "common-etcd-client.crt" "key" "common-etcd-client.key" "ca" "common-etcd-client-ca.crt") | nindent 4 }}
    {{- include "skep.certSource" (dict "ctx" . "secret" "clustermesh-apiserver-local-cert" "crt" "local-etcd-client.crt" "key" "local-etcd-client.key" "ca" "local-etcd-client-ca.crt") | nindent 4 }}
{{- end }}

{{/* Data of a Secret of client configurations: (dict "ctx" . "to" "remote" or "local" or "etcd"). */}}
{{- define "skep.meshConfig" -}}
{{- $v := .ctx.Values }}
{{- $folder := "/var/lib/cilium/clustermesh" }}
{{- range $cluster := include "skep.clusters" .ctx | fromJsonArray }}
{{- $config := dict }}
{{- $tls := $cluster.tls | default dict }}
{{- if eq $.to "etcd" }}
{{- $config = dict "endpoints" $v.etcd.endpoints }}
{{- if $v.etcd.ssl }}{{ $config = merge $config (dict "trusted-ca-file" "/var/lib/etcd-secrets/etcd-client-ca.crt" "key-file" "/var/lib/etcd-secrets/etcd-client.key" "cert-file" "/var/lib/etcd-secrets/etcd-client.crt") }}{{ end }}
{{- else if eq $.to "local" }}
{{- $config = dict "endpoints" (list (printf "https://clustermesh-apiserver.%s.svc:2379" (include "skep.namespace" $.ctx))) "trusted-ca-file" (printf "%s/local-etcd-client-ca.crt" $folder) "key-file" (printf "%s/local-etcd-client.key" $folder) "cert-file" (printf "%s/local-etcd-client.crt" $folder) }}
{{- else }}
{{- $own := printf "%s.etcd-client" $cluster.name }}
{{- $pair := ternary $own "common-etcd-client" (not (empty (and $tls.cert $tls.key))) }}
{{- $authority := ternary $own "common-etcd-client" (not (empty $tls.caCert)) }}
{{- $host := ternary (printf "%s.%s" $cluster.name $v.clustermesh.config.domain) (toString $cluster.address) (not (empty $cluster.ips)) }}
{{- $config = dict "endpoints" (list (printf "https://%s:%s" $host (include "skep.text" (dict "value" $cluster.port)))) "trusted-ca-file" (printf "%s/%s-ca.crt" $folder $authority) "key-file" (printf "%s/%s.key" $folder $pair) "cert-file" (printf "%s/%s.crt" $folder $pair) }}
{{- if $cluster.ips }}{{ $_ := set $config "cilium-host-aliases" (list (dict "hostname" $host "ips" $cluster.ips)) }}{{ end }}
{{- with $tls.caCert }}
{{ $own }}-ca.crt: {{ . }}
{{- end }}
{{- if and $tls.cert $tls.key }}
{{ $own }}.key: {{ $tls.key }}
{{ $own }}.crt: {{ $tls.cert }}
{{- end }}
{{- end }}
{{ $cluster.name }}: {{ toYaml $config | b64enc }}
{{- end }}
{{- end }}

{{/* Certificates of the mesh, as a JSON list. */}}
{{- define "skep.meshCerts" -}}
{{- $v := .Values }}
{{- $tls := $v.clustermesh.apiserver.tls }}
{{- $d := include "skep.derived" . | fromJson }}
{{- $server := printf "clustermesh-apiserver.%s.svc" (include "skep.namespace" .) }}
{{- $old := ($tls.server | default dict) }}
{{- $names := $tls.auto.server.extraDnsNames | default $old.extraDnsNames | default list }}
{{- $addresses := $tls.auto.server.extraIpAddresses | default $old.extraIpAddresses | default list }}
{{- $remote := ternary (printf "remote-%s" $v.cluster.name) "remote" (eq $tls.authMode "cluster") }}
{{- $certs := list
  (dict "name" "clustermesh-apiserver-server-cert" "cn" $server "dns" (concat (list $server "*.mesh.cilium.io") $names) "ips" (concat (list "127.0.0.1" "::1") $addresses) "usage" (list "server auth"))
  (dict "name" "clustermesh-apiserver-admin-cert" "cn" (printf "admin-%s" $v.cluster.name) "usage" (list "client auth"))
  (dict "name" "clustermesh-apiserver-remote-cert" "cn" $remote "usage" (list "client auth")) }}
{{- if $d.kvstoremesh }}{{ $certs = append $certs (dict "name" "clustermesh-apiserver-local-cert" "cn" (printf "local-%s" $v.cluster.name) "usage" (list "client auth")) }}{{ end }}
{{- toJson $certs }}
{{- end }}
