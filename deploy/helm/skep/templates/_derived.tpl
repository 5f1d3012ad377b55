{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Settings that follow of several values, as JSON. Computed once per rendering, and then all values are checked: before any
     template uses them. */}}
{{- define "skep.derived" -}}
{{- if not (hasKey .Values "_derived") }}
{{- $_ := set .Values "_derived" (include "skep.deriveAll" .) }}
{{- include "skep.check" . }}
{{- end }}
{{- .Values._derived }}
{{- end }}

{{- define "skep.deriveAll" -}}
{{- $v := .Values }}
{{- $d := dict }}
{{- $cloud := or $v.eni.enabled $v.azure.enabled $v.alibabacloud.enabled }}

{{- /* Routing */}}
{{- $_ := set $d "ipam" (ternary "eni" $v.ipam.mode (eq true $v.eni.enabled)) }}
{{- $_ := set $d "routingMode" ($v.routingMode | default (ternary "native" "tunnel" (or $v.eni.enabled $v.gke.enabled))) }}
{{- $_ := set $d "tunnelProtocol" ($v.tunnelProtocol | default "vxlan") }}
{{- $_ := set $d "endpointRoutes" (or (eq "true" (toString $v.endpointRoutes.enabled)) $cloud $v.gke.enabled) }}
{{- $_ := set $d "createCiliumNode" $cloud }}
{{- $old118 := include "skep.olderThan" (dict "ctx" . "version" "1.18") }}
{{- if kindIs "invalid" $v.enableIPv4Masquerade }}
{{- $_ := set $d "ipv4Masquerade" (or (not $v.eni.enabled) (not (empty $old118))) }}
{{- else }}{{ $_ := set $d "ipv4Masquerade" $v.enableIPv4Masquerade }}
{{- end }}
{{- $_ := set $d "ipv4NativeRoutingCIDR" $v.ipv4NativeRoutingCIDR }}
{{- $_ := set $d "ipv6NativeRoutingCIDR" $v.ipv6NativeRoutingCIDR }}
{{- if $v.nativeRoutingCIDRFromClusterPool }}
{{- range $family := list (list "ipv4" "clusterPoolIPv4PodCIDRList") (list "ipv6" "clusterPoolIPv6PodCIDRList") }}
{{- $name := printf "%sNativeRoutingCIDR" (first $family) }}
{{- $pool := index $v.ipam.operator (last $family) }}
{{- if kindIs "slice" $pool }}{{ $pool = first $pool }}{{ end }}
{{- if and (index $v (first $family)).enabled (empty (index $d $name)) }}{{ $_ := set $d $name $pool }}{{ end }}
{{- end }}
{{- end }}
{{- $old18 := include "skep.olderThan" (dict "ctx" . "version" "1.8") }}
{{- $old110 := include "skep.olderThan" (dict "ctx" . "version" "1.10") }}
{{- $_ := set $d "bpfMasquerade" (ternary (ternary true nil (and (empty $old18) (not (empty $old110)))) $v.bpf.masquerade (kindIs "invalid" $v.bpf.masquerade)) }}
{{- $_ := set $d "mapDynamicSizeRatio" $v.bpf.mapDynamicSizeRatio }}
{{- $_ := set $d "ctTcpMax" $v.bpf.ctTcpMax }}
{{- $_ := set $d "ctAnyMax" $v.bpf.ctAnyMax }}
{{- if and (kindIs "invalid" $v.bpf.mapDynamicSizeRatio) (empty $old18) }}{{ $_ := set $d "mapDynamicSizeRatio" "0.0025" }}{{ end }}
{{- if and (kindIs "invalid" $v.bpf.mapDynamicSizeRatio) $old18 }}
{{- if kindIs "invalid" $v.bpf.ctTcpMax }}{{ $_ := set $d "ctTcpMax" "524288" }}{{ end }}
{{- if kindIs "invalid" $v.bpf.ctAnyMax }}{{ $_ := set $d "ctAnyMax" "262144" }}{{ end }}
{{- end }}
{{- $_ := set $d "conntrackAccounting" (ternary "1" "" (eq true $v.bpf.ctAccounting)) }}
{{- $_ := set $d "policyEnforcementMode" (lower (toString $v.policyEnforcementMode)) }}
{{- $_ := set $d "procfs" (ternary "" "/host/proc" (eq true $v.securityContext.privileged)) }}

{{- /* Services */}}
{{- $_ := set $d "kubeProxyReplacement" (toString $v.kubeProxyReplacement) }}
{{- $_ := set $d "replacesKubeProxy" (eq "true" (toString $v.kubeProxyReplacement)) }}
{{- $_ := set $d "socketLB" (or $v.socketLB.enabled ($v.hostServices | default dict).enabled false) }}
{{- $_ := set $d "socketLBHostOnly" (ternary true $v.socketLB.hostNamespaceOnly (eq true $v.gatewayAPI.enabled)) }}
{{- $_ := set $d "lbAlgorithmAnnotation" (or $v.bpf.lbAlgorithmAnnotation $v.gatewayAPI.enabled) }}
{{- $_ := set $d "healthCheckLoadBalancerIP" (or $v.nodePort.enableHealthCheckLoadBalancerIP $v.gke.enabled) }}
{{- $_ := set $d "localRedirectPolicy" (or $v.localRedirectPolicies.enabled $v.localRedirectPolicy) }}

{{- /* IPAM */}}
{{- $pool := eq $d.ipam "cluster-pool" }}
{{- $_ := set $d "clusterPool4" (and $pool $v.ipv4.enabled) }}
{{- $_ := set $d "clusterPool6" (and $pool $v.ipv6.enabled) }}
{{- $_ := set $d "multiPool" (eq $d.ipam "multi-pool") }}
{{- $pools := list }}
{{- range $name, $p := $v.ipam.operator.autoCreateCiliumPodIPPools }}
{{- if not (kindIs "map" $p) }}{{ $p = dict }}{{ end }}
{{- $parts := list }}
{{- range $family := list "ipv4" "ipv6" }}
{{- with index $p $family }}
{{- with .cidrs }}{{ $parts = append $parts (printf "%s-cidrs:%s" $family (include "skep.text" (dict "value" . "join" ","))) }}{{ end }}
{{- with .maskSize }}{{ $parts = append $parts (printf "%s-mask-size:%s" $family (include "skep.text" (dict "value" .))) }}{{ end }}
{{- end }}
{{- end }}
{{- if hasKey $p "allowFirstIP" }}{{ $parts = append $parts (printf "allow-first-ip:%s" (toString $p.allowFirstIP)) }}{{ end }}
{{- if hasKey $p "allowLastIP" }}{{ $parts = append $parts (printf "allow-last-ip:%s" (toString $p.allowLastIP)) }}{{ end }}
{{- $pools = append $pools (printf "%s=%s" $name (join ";" $parts)) }}
{{- end }}
{{- $_ := set $d "createPools" (join "," $pools) }}
{{- $old112 := include "skep.olderThan" (dict "ctx" . "version" "1.12") }}
{{- $_ := set $d "azurePrimaryAddress" (ternary (not (empty $old112)) $v.azure.usePrimaryAddress (kindIs "invalid" $v.azure.usePrimaryAddress)) }}

{{- /* CNI and chaining */}}
{{- $chaining := $v.cni.chainingMode | default (ternary "generic-veth" "none" (not (empty $v.cni.chainingTarget))) }}
{{- $chained := ne $chaining "none" }}
{{- $replaces := and $chained (ne $chaining "portmap") }}
{{- $_ := set $d "chaining" $chaining }}
{{- $_ := set $d "chainingMode" (ternary $chaining "" $chained) }}
{{- $_ := set $d "hostLegacyRouting" (ternary (ternary true nil $chained) $v.bpf.hostLegacyRouting (kindIs "invalid" $v.bpf.hostLegacyRouting)) }}
{{- $_ := set $d "localNodeRoute" (ternary "false" "" $replaces) }}
{{- $_ := set $d "endpointHealthChecking" (and $v.endpointHealthChecking.enabled (not $replaces)) }}
{{- $_ := set $d "identityMark" (ternary $v.enableIdentityMark nil $chained) }}
{{- $_ := set $d "noConntrackRules" (and $v.installNoConntrackIptablesRules (not (or $chained $v.eni.enabled $v.azure.enabled $v.gke.enabled))) }}
{{- if kindIs "invalid" $v.dnsProxy.enableTransparentMode }}
{{- $_ := set $d "dnsTransparentMode" (ternary nil (empty $old112) $chained) }}
{{- else }}{{ $_ := set $d "dnsTransparentMode" $v.dnsProxy.enableTransparentMode }}
{{- end }}
{{- $_ := set $d "ownsCniConf" (and $v.cni.install (not $v.cni.customConf)) }}
{{- $_ := set $d "readCniConf" ($v.cni.readCniConf | default (ternary (printf "%s/%s" $v.cni.confFileMountPath $v.cni.configMapKey) "" (not (empty $v.cni.configMap)))) }}
{{- $_ := set $d "writeCniConf" (ternary (printf "%s/05-cilium.conflist" $v.cni.hostConfDirMountPath) "" (and $v.cni.install (or (not $v.cni.customConf) (not (empty $v.cni.configMap))))) }}

{{- /* Programs */}}
{{- $_ := set $d "healthPort" (ternary "" $v.healthPort (eq "9879" (include "skep.text" (dict "value" $v.healthPort)))) }}
{{- $options := dict }}{{ range $k, $o := $v.logOptions }}{{ if not (kindIs "invalid" $o) }}{{ $_ := set $options $k $o }}{{ end }}{{ end }}
{{- $_ := set $d "logOptions" $options }}
{{- $_ := set $d "loopback" (ternary "127.0.0.1" "::1" (eq true $v.ipv4.enabled)) }}
{{- $_ := set $d "operatorAddress" (ternary "" (ternary "127.0.0.1:9234" "[::1]:9234" (eq true $v.ipv4.enabled)) (not (empty $old18))) }}
{{- $_ := set $d "execProbes" (or $v.keepDeprecatedProbes (not (empty $old18))) }}
{{- $_ := set $d "metricsAddress" (printf ":%s" (include "skep.text" (dict "value" $v.prometheus.port))) }}
{{- $_ := set $d "operatorMetricsAddress" (printf ":%s" (include "skep.text" (dict "value" $v.operator.prometheus.port))) }}
{{- $metricsTLS := and $v.operator.prometheus.enabled $v.operator.prometheus.tls.enabled }}
{{- $_ := set $d "operatorMetricsTLS" $metricsTLS }}
{{- $_ := set $d "operatorMetricsCert" "/var/lib/cilium/tls/prometheus/server.crt" }}
{{- $_ := set $d "operatorMetricsKey" "/var/lib/cilium/tls/prometheus/server.key" }}
{{- $_ := set $d "operatorMetricsClientCA" (ternary "/var/lib/cilium/tls/prometheus/client-ca.crt" "" (eq true $v.operator.prometheus.tls.server.mtls.enabled)) }}
{{- $_ := set $d "unmanagedPodWatcherInterval" (ternary (printf "%ss" (include "skep.text" (dict "value" $v.operator.unmanagedPodWatcher.intervalSeconds))) "0" (eq true $v.operator.unmanagedPodWatcher.restart)) }}
{{- $_ := set $d "removeNodeTaints" (ternary true nil (eq true $v.operator.removeNodeTaints)) }}
{{- $taints := ternary $v.operator.removeNodeTaints $v.operator.setNodeTaints (kindIs "invalid" $v.operator.setNodeTaints) }}
{{- $_ := set $d "setNodeTaints" (ternary true nil (eq true $taints)) }}
{{- $_ := set $d "setNodeNetworkStatus" (ternary true nil (eq true $v.operator.setNodeNetworkStatus)) }}
{{- $_ := set $d "kvstore" "etcd" }}
{{- $_ := set $d "kvstoreOptions" "{\"etcd.config\": \"/var/lib/etcd-config/etcd.config\"}" }}
{{- $etcd := dict "endpoints" $v.etcd.endpoints }}
{{- if $v.etcd.ssl }}{{ $_ := merge $etcd (dict "trusted-ca-file" "/var/lib/etcd-secrets/etcd-client-ca.crt" "key-file" "/var/lib/etcd-secrets/etcd-client.key" "cert-file" "/var/lib/etcd-secrets/etcd-client.crt") }}{{ end }}
{{- $_ := set $d "etcdConfig" (toYaml $etcd) }}
{{- $readsNamespace := true }}
{{- if not (kindIs "invalid" $v.tls.readSecretsOnlyFromSecretsNamespace) }}{{ $readsNamespace = $v.tls.readSecretsOnlyFromSecretsNamespace }}
{{- else if eq "k8s" (toString $v.tls.secretsBackend) }}{{ $readsNamespace = false }}{{ end }}
{{- $_ := set $d "readsSecretsNamespace" $readsNamespace }}
{{- $old117 := include "skep.olderThan" (dict "ctx" . "version" "1.17") }}
{{- $sync := ternary (empty $old117) $v.tls.secretSync.enabled (kindIs "invalid" $v.tls.secretSync.enabled) }}
{{- $_ := set $d "secretSync" (ternary true nil (and $readsNamespace $sync)) }}

{{- /* Hubble */}}
{{- $_ := set $d "hubblePlain" (not $v.hubble.tls.enabled) }}
{{- $_ := set $d "hubblePreferIPv6" (or $v.hubble.preferIpv6 $v.preferIpv6 (not $v.ipv4.enabled)) }}
{{- $_ := set $d "hubbleTLS" (and $v.hubble.enabled $v.hubble.tls.enabled) }}
{{- range $kind := list (list "hubble" "hubble") (list "hubbleMetrics" "hubble-metrics") }}
{{- $_ := set $d (printf "%sCert" (first $kind)) (printf "/var/lib/cilium/tls/%s/server.crt" (last $kind)) }}
{{- $_ := set $d (printf "%sKey" (first $kind)) (printf "/var/lib/cilium/tls/%s/server.key" (last $kind)) }}
{{- $_ := set $d (printf "%sClientCA" (first $kind)) (printf "/var/lib/cilium/tls/%s/client-ca.crt" (last $kind)) }}
{{- end }}
{{- if not $v.hubble.metrics.tls.server.mtls.enabled }}{{ $_ := set $d "hubbleMetricsClientCA" "" }}{{ end }}
{{- $_ := set $d "hubbleMetrics" (and $v.hubble.enabled (or (not (empty $v.hubble.metrics.enabled)) $v.hubble.metrics.dynamic.enabled)) }}
{{- $_ := set $d "hubbleMetricsTLS" (and $d.hubbleMetrics $v.hubble.metrics.tls.enabled) }}
{{- $_ := set $d "hubbleMetricsAddress" (printf ":%s" (include "skep.text" (dict "value" $v.hubble.metrics.port))) }}
{{- $_ := set $d "hubbleDynamicMetrics" (ternary "/dynamic-metrics-config/dynamic-metrics.yaml" "" (eq true $v.hubble.metrics.dynamic.enabled)) }}
{{- $_ := set $d "hubbleExport" (and $v.hubble.enabled $v.hubble.export.static.enabled) }}
{{- $export := $v.hubble.export }}
{{- $_ := set $d "hubbleExportInterval" ($export.aggregationInterval | default "0s") }}
{{- $_ := set $d "hubbleExportSize" (ternary $export.static.fileMaxSizeMb $export.fileMaxSizeMb (kindIs "invalid" $export.fileMaxSizeMb)) }}
{{- $_ := set $d "hubbleExportBackups" (ternary $export.static.fileMaxBackups $export.fileMaxBackups (kindIs "invalid" $export.fileMaxBackups)) }}
{{- $_ := set $d "hubbleExportCompress" (ternary true nil (or (eq true $export.static.fileCompress) (eq "true" (toString $export.fileCompress)))) }}
{{- $_ := set $d "hubbleFlowLogs" (ternary "/flowlog-config/flowlogs.yaml" "" (and $v.hubble.enabled $export.dynamic.enabled)) }}
{{- $_ := set $d "hubbleRedact" (and $v.hubble.enabled $v.hubble.redact.enabled) }}
{{- $_ := set $d "hubbleDropEvents" (and $v.hubble.enabled $v.hubble.dropEventEmitter.enabled) }}
{{- $relay := and $v.hubble.enabled $v.hubble.relay.enabled }}
{{- $_ := set $d "relay" $relay }}

{{- /* Envoy */}}
{{- $old116 := include "skep.olderThan" (dict "ctx" . "version" "1.16") }}
{{- $external := and $v.l7Proxy (ternary (empty $old116) (eq "true" (toString $v.envoy.enabled)) (kindIs "invalid" $v.envoy.enabled)) }}
{{- $_ := set $d "externalEnvoy" $external }}
{{- $_ := set $d "embeddedEnvoyMetrics" (and (not $external) $v.envoy.prometheus.enabled) }}
{{- $_ := set $d "embeddedEnvoyAdmin" (and (not $external) $v.envoy.debug.admin.enabled) }}
{{- $l7 := eq "envoy" (toString $v.loadBalancer.l7.backend) }}
{{- $_ := set $d "l7LoadBalancer" $l7 }}
{{- $_ := set $d "envoyConfig" (or $v.envoyConfig.enabled $v.ingressController.enabled $v.gatewayAPI.enabled $l7) }}
{{- $secret := and $v.ingressController.defaultSecretNamespace $v.ingressController.defaultSecretName }}
{{- $_ := set $d "ingressSecretNamespace" (ternary $v.ingressController.defaultSecretNamespace "" (not (empty $secret))) }}
{{- $_ := set $d "ingressSecretName" (ternary $v.ingressController.defaultSecretName "" (not (empty $secret))) }}
{{- $_ := set $d "ingressNodes" (include "skep.selector" $v.ingressController.hostNetwork.nodes.matchLabels) }}
{{- $_ := set $d "gatewayNodes" (include "skep.selector" $v.gatewayAPI.hostNetwork.nodes.matchLabels) }}
{{- $_ := set $d "gatewayAppProtocol" (or $v.gatewayAPI.enableAppProtocol $v.gatewayAPI.enableAlpn) }}

{{- /* Encryption and authentication */}}
{{- range $type := list "ipsec" "wireguard" "ztunnel" }}
{{- $_ := set $d $type (and $v.encryption.enabled (eq $type (toString $v.encryption.type))) }}
{{- end }}
{{- $_ := set $d "ipsecKeyFile" (printf "%s/%s" $v.encryption.ipsec.mountPath $v.encryption.ipsec.keyFile) }}
{{- $spire := $v.authentication.mutual.spire }}
{{- $_ := set $d "spireServer" ($spire.serverAddress | default (printf "spire-server.%s.svc:8081" $spire.install.namespace)) }}

{{- /* Mesh */}}
{{- $mesh := $v.clustermesh }}
{{- $kvstoreMode := $mesh.apiserver.kvstoremesh.kvstoreMode }}
{{- $_ := set $d "externalKvstoremesh" (eq $kvstoreMode "external") }}
{{- $_ := set $d "kvstoremesh" (and $mesh.useAPIServer $mesh.apiserver.kvstoremesh.enabled) }}
{{- $_ := set $d "internalMesh" (and $mesh.useAPIServer (ne $kvstoreMode "external")) }}
{{- $_ := set $d "crdIdentities" (ne $v.identityAllocationMode "kvstore") }}
{{- $_ := set $d "meshUsers" (and $d.internalMesh (ne $mesh.apiserver.tls.authMode "legacy") $d.crdIdentities) }}
{{- $_ := set $d "operatorMesh" (or $mesh.enableEndpointSliceSynchronization $mesh.mcsapi.enabled) }}

{{- /* Which objects */}}
{{- $_ := set $d "agent" (and $v.agent (not $v.preflight.enabled)) }}
{{- $_ := set $d "operator" $v.operator.enabled }}
{{- $_ := set $d "config" (and (or $v.agent $v.operator.enabled $mesh.useAPIServer) (not $v.preflight.enabled)) }}
{{- toJson $d }}
{{- end }}
