{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Values that are refused: all faults at once, each with what to set instead. A JSON list. */}}
{{- define "skep.faults" -}}
{{- $v := .Values }}
{{- $d := include "skep.derived" . | fromJson }}
{{- $faults := list }}

{{- /* Values of old charts */}}
{{- range $path, $advice := .Files.Get "files/removed.yaml" | fromYaml }}
{{- $value := $v }}
{{- range splitList "." $path }}{{ if kindIs "map" $value }}{{ $value = index $value . }}{{ else }}{{ $value = "" }}{{ end }}{{ end }}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}{{ $faults = append $faults (printf "%s was removed: %s" $path $advice) }}{{ end }}
{{- end }}

{{- /* Words */}}
{{- range $path, $words := .Files.Get "files/words.yaml" | fromYaml }}
{{- $value := $v }}
{{- range splitList "." $path }}{{ if kindIs "map" $value }}{{ $value = index $value . }}{{ else }}{{ $value = "" }}{{ end }}{{ end }}
{{- if and (not (kindIs "invalid" $value)) (ne (toString $value) "") (not (has (toString $value) $words)) }}
{{- $faults = append $faults (printf "%s is %q: set one of %s" $path (toString $value) (join ", " $words)) }}
{{- end }}
{{- end }}

{{- /* Cluster and mesh */}}
{{- $name := toString $v.cluster.name }}
{{- $id := int $v.cluster.id }}
{{- $max := int $v.clustermesh.maxConnectedClusters }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" $name) }}{{ $faults = append $faults (printf "cluster.name %q is invalid: use lower case letters, digits and '-', with a letter or digit at both ends" $name) }}{{ end }}
{{- if gt (len $name) 32 }}{{ $faults = append $faults (printf "cluster.name %q has more than 32 characters" $name) }}{{ end }}
{{- if and (eq $name "default") (ne $id 0) }}{{ $faults = append $faults (printf "cluster.name cannot be \"default\" with cluster.id=%d: set a name that is unique in the mesh" $id) }}{{ end }}
{{- if not (has $max (list 255 511)) }}{{ $faults = append $faults (printf "clustermesh.maxConnectedClusters is %d: set 255 or 511" $max) }}
{{- else if or (lt $id 0) (gt $id $max) }}{{ $faults = append $faults (printf "cluster.id is %d: set 0 to clustermesh.maxConnectedClusters (%d)" $id $max) }}{{ end }}
{{- if and (or $v.eni.enabled $v.alibabacloud.enabled (eq $d.chaining "aws-cni")) (or (and (ge $id 128) (le $id 255)) (and (ge $id 384) (le $id 511))) (ne "true" (toString (index $v.extraConfig "allow-unsafe-policy-skb-usage"))) }}
{{- $faults = append $faults (printf "cluster.id is %d: with ENI, Alibaba Cloud or chaining with aws-cni, the packet mark of ids 128-255 and 384-511 is that of the cloud's CNI, and policies drop traffic: set another id" $id) }}
{{- end }}
{{- range include "skep.clusters" . | fromJsonArray }}
{{- if not .name }}{{ $faults = append $faults "clustermesh.config.clusters: a cluster has no name" }}
{{- else if not (or .address .ips) }}{{ $faults = append $faults (printf "clustermesh.config.clusters: cluster %q has no address: set address or ips" .name) }}
{{- else if not .port }}{{ $faults = append $faults (printf "clustermesh.config.clusters: cluster %q has no port" .name) }}{{ end }}
{{- end }}
{{- $mesh := $v.clustermesh.apiserver }}
{{- if $v.clustermesh.useAPIServer }}
{{- if and $v.disableEndpointCRD $d.crdIdentities }}{{ $faults = append $faults "clustermesh.useAPIServer requires CiliumEndpoints: set disableEndpointCRD=false" }}{{ end }}
{{- if and (not $d.crdIdentities) (not $mesh.kvstoremesh.enabled) }}{{ $faults = append $faults "identityAllocationMode=kvstore requires clustermesh.apiserver.kvstoremesh.enabled=true" }}{{ end }}
{{- if and $d.internalMesh (not $mesh.tls.auto.enabled) }}
{{- range $kind := list "server" "admin" "client" "remote" }}{{ with index $mesh.tls $kind }}{{ if and (kindIs "map" .) (or .cert .key) }}{{ $faults = append $faults (printf "clustermesh.apiserver.tls.%s.cert and .key are not supported: set clustermesh.apiserver.tls.auto.enabled=true, or create the Secrets clustermesh-apiserver-*-cert and leave the values empty" $kind) }}{{ end }}{{ end }}{{ end }}
{{- end }}
{{- end }}
{{- if $d.externalKvstoremesh }}
{{- if not $v.clustermesh.useAPIServer }}{{ $faults = append $faults "clustermesh.apiserver.kvstoremesh.kvstoreMode=external requires clustermesh.useAPIServer=true" }}{{ end }}
{{- if not $mesh.kvstoremesh.enabled }}{{ $faults = append $faults "clustermesh.apiserver.kvstoremesh.kvstoreMode=external requires clustermesh.apiserver.kvstoremesh.enabled=true" }}{{ end }}
{{- if eq $v.identityAllocationMode "crd" }}{{ $faults = append $faults "clustermesh.apiserver.kvstoremesh.kvstoreMode=external requires identityAllocationMode kvstore or doublewrite-*, not crd" }}{{ end }}
{{- if ne 1 (int $mesh.replicas) }}{{ $faults = append $faults "clustermesh.apiserver.kvstoremesh.kvstoreMode=external requires clustermesh.apiserver.replicas=1" }}{{ end }}
{{- end }}
{{- if and (has $v.identityAllocationMode (list "kvstore" "doublewrite-readkvstore")) (not $v.etcd.enabled) (not (index $v.extraConfig "kvstore")) }}{{ $faults = append $faults (printf "identityAllocationMode=%s requires etcd.enabled=true and etcd.endpoints" $v.identityAllocationMode) }}{{ end }}

{{- /* Network */}}
{{- if not (or $v.ipv4.enabled $v.ipv6.enabled) }}{{ $faults = append $faults "ipv4.enabled and ipv6.enabled are both false: enable at least one" }}{{ end }}
{{- if and $v.gke.enabled $v.routingMode (ne $v.routingMode "native") }}{{ $faults = append $faults "gke.enabled requires routingMode=native" }}{{ end }}
{{- if and $v.aksbyocni.enabled $v.routingMode (ne $v.routingMode "tunnel") }}{{ $faults = append $faults "aksbyocni.enabled requires routingMode=tunnel" }}{{ end }}
{{- if and (eq $d.routingMode "native") (not $v.ipMasqAgent.enabled) }}
{{- if and (eq true $v.enableIPv4Masquerade) $v.ipv4.enabled (not $d.ipv4NativeRoutingCIDR) (not (has $d.ipam (list "eni" "alibabacloud"))) }}{{ $faults = append $faults "routingMode=native with enableIPv4Masquerade requires ipv4NativeRoutingCIDR: the network that pods reach without masquerading" }}{{ end }}
{{- if and (eq true $v.enableIPv6Masquerade) $v.ipv6.enabled (not $d.ipv6NativeRoutingCIDR) }}{{ $faults = append $faults "routingMode=native with enableIPv6Masquerade requires ipv6NativeRoutingCIDR, or enableIPv6Masquerade=false" }}{{ end }}
{{- end }}
{{- if $v.nativeRoutingCIDRFromClusterPool }}
{{- range $list := list "clusterPoolIPv4PodCIDRList" "clusterPoolIPv6PodCIDRList" }}
{{- $pool := index $v.ipam.operator $list }}
{{- if and (kindIs "slice" $pool) (gt (len $pool) 1) }}{{ $faults = append $faults (printf "nativeRoutingCIDRFromClusterPool requires one network in ipam.operator.%s: set ipv4NativeRoutingCIDR or ipv6NativeRoutingCIDR instead" $list) }}{{ end }}
{{- end }}
{{- end }}
{{- range $name, $pool := $v.ipam.operator.autoCreateCiliumPodIPPools }}
{{- if not (and (kindIs "map" $pool) (or (kindIs "map" $pool.ipv4) (kindIs "map" $pool.ipv6))) }}{{ $faults = append $faults (printf "ipam.operator.autoCreateCiliumPodIPPools.%s has no networks: set ipv4.cidrs and ipv4.maskSize, or those of ipv6" $name) }}{{ end }}
{{- end }}
{{- range $path, $addresses := dict "hubble.tls.server.extraIpAddresses" $v.hubble.tls.server.extraIpAddresses "hubble.relay.tls.server.extraIpAddresses" $v.hubble.relay.tls.server.extraIpAddresses "hubble.metrics.tls.server.extraIpAddresses" $v.hubble.metrics.tls.server.extraIpAddresses "clustermesh.apiserver.tls.auto.server.extraIpAddresses" $mesh.tls.auto.server.extraIpAddresses }}
{{- range $addresses }}{{ if not (regexMatch "^([0-9]{1,3}([.][0-9]{1,3}){3}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)$" (toString .)) }}{{ $faults = append $faults (printf "%s: %q is not an address" $path (toString .)) }}{{ end }}{{ end }}
{{- end }}
{{- if and (eq $v.ipam.mode "eni") (not $v.eni.enabled) }}{{ $faults = append $faults "ipam.mode=eni requires eni.enabled=true" }}{{ end }}
{{- if and (eq true $v.bpf.tproxy) (hasPrefix "netkit" (toString $v.bpf.datapathMode)) }}{{ $faults = append $faults (printf "bpf.tproxy cannot be combined with bpf.datapathMode=%s" $v.bpf.datapathMode) }}{{ end }}

{{- /* API server */}}
{{- if and $v.k8sServiceHost $v.k8sServiceHostRef.name }}{{ $faults = append $faults "k8sServiceHost and k8sServiceHostRef are both set: set one of them" }}{{ end }}
{{- range $variable := $v.extraEnv }}
{{- if and $v.k8sClientExponentialBackoff.enabled (has $variable.name (list "KUBE_CLIENT_BACKOFF_BASE" "KUBE_CLIENT_BACKOFF_DURATION")) }}{{ $faults = append $faults (printf "extraEnv: %s is not a variable of Skep; remove it, or set k8sClientExponentialBackoff.enabled=false" $variable.name) }}{{ end }}
{{- end }}

{{- /* Programs */}}
{{- if and (eq true $v.operator.setNodeTaints) (not $v.operator.removeNodeTaints) }}{{ $faults = append $faults "operator.setNodeTaints requires operator.removeNodeTaints=true: nothing would remove the taint" }}{{ end }}
{{- if and $v.ciliumEndpointSlice.enabled $v.disableEndpointCRD }}{{ $faults = append $faults "ciliumEndpointSlice.enabled requires disableEndpointCRD=false" }}{{ end }}
{{- if and $v.keepDeprecatedLabels $v.gke.enabled (eq "kube-system" (include "skep.namespace" .)) }}{{ $faults = append $faults "keepDeprecatedLabels cannot be set on GKE in kube-system: GKE removes objects with this label" }}{{ end }}
{{- if and $v.operator.prometheus.tls.enabled (not $v.operator.prometheus.tls.server.existingSecret) }}{{ $faults = append $faults "operator.prometheus.tls.enabled requires operator.prometheus.tls.server.existingSecret" }}{{ end }}
{{- range $path, $monitor := dict "prometheus.serviceMonitor" (and $v.prometheus.enabled $v.prometheus.serviceMonitor.enabled) "operator.prometheus.serviceMonitor" (and $v.operator.prometheus.enabled $v.operator.prometheus.serviceMonitor.enabled)
  "hubble.metrics.serviceMonitor" (and $d.hubbleMetrics $v.hubble.metrics.serviceMonitor.enabled) "hubble.relay.prometheus.serviceMonitor" (and $d.relay $v.hubble.relay.prometheus.enabled $v.hubble.relay.prometheus.serviceMonitor.enabled)
  "envoy.prometheus.serviceMonitor" (and $d.externalEnvoy $d.agent $v.envoy.prometheus.enabled $v.envoy.prometheus.serviceMonitor.enabled)
  "clustermesh.apiserver.metrics.serviceMonitor" (and $v.clustermesh.useAPIServer $v.clustermesh.apiserver.metrics.serviceMonitor.enabled) }}
{{- if and $monitor (not ($.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) (not $v.prometheus.serviceMonitor.trustCRDsExist) }}{{ $faults = append $faults (printf "%s.enabled requires the definitions of monitoring.coreos.com/v1: install them, or set prometheus.serviceMonitor.trustCRDsExist=true" $path) }}{{ end }}
{{- end }}

{{- $ca := $v.tls.ca }}
{{- $signs := or (and $d.hubbleTLS $v.hubble.tls.auto.enabled (eq $v.hubble.tls.auto.method "helm")) (and $d.internalMesh $mesh.tls.auto.enabled (eq $mesh.tls.auto.method "helm")) }}
{{- if and $ca.cert (not (contains "BEGIN CERTIFICATE" (b64dec $ca.cert))) }}{{ $faults = append $faults "tls.ca.cert is not a certificate in base64 PEM" }}{{ end }}
{{- if and $ca.key (not (contains "PRIVATE KEY" (b64dec $ca.key))) }}{{ $faults = append $faults "tls.ca.key is not a key in base64 PEM" }}{{ end }}
{{- if and $signs (ne (empty $ca.cert) (empty $ca.key)) }}{{ $faults = append $faults "tls.ca.cert and tls.ca.key belong together: set both, or methods cronJob or certmanager" }}{{ end }}

{{- /* Hubble */}}
{{- if and $v.hubble.relay.enabled (not $v.hubble.enabled) }}{{ $faults = append $faults "hubble.relay.enabled requires hubble.enabled=true" }}{{ end }}
{{- if and $v.hubble.ui.enabled (not $v.hubble.relay.enabled) (not $v.hubble.ui.standalone.enabled) }}{{ $faults = append $faults "hubble.ui.enabled requires hubble.relay.enabled=true, or hubble.ui.standalone.enabled=true" }}{{ end }}
{{- if and $v.hubble.redact.enabled $v.hubble.redact.http.headers.allow $v.hubble.redact.http.headers.deny }}{{ $faults = append $faults "hubble.redact.http.headers.allow and .deny are both set: set one of them" }}{{ end }}
{{- if and $d.hubbleTLS $v.hubble.tls.auto.enabled (eq $v.hubble.tls.auto.method "certmanager") (not $v.hubble.tls.auto.certManagerIssuerRef) }}{{ $faults = append $faults "hubble.tls.auto.method=certmanager requires hubble.tls.auto.certManagerIssuerRef" }}{{ end }}
{{- if and $d.internalMesh $mesh.tls.auto.enabled (eq $mesh.tls.auto.method "certmanager") (not $mesh.tls.auto.certManagerIssuerRef) }}{{ $faults = append $faults "clustermesh.apiserver.tls.auto.method=certmanager requires clustermesh.apiserver.tls.auto.certManagerIssuerRef" }}{{ end }}
{{- range $part := list "frontend" "backend" }}
{{- $tag := toString (index $v.hubble.ui $part).image.tag | trimPrefix "v" }}
{{- if and $v.hubble.ui.enabled (regexMatch "^[0-9]+[.][0-9]+[.][0-9]+$" $tag) }}{{ if semverCompare "<0.9.0" $tag }}{{ $faults = append $faults (printf "hubble.ui.%s.image.tag is too old: use 0.9.0 or later" $part) }}{{ end }}{{ end }}
{{- end }}

{{- /* L7 and others */}}
{{- if and (not $v.l7Proxy) (or $v.ingressController.enabled $v.gatewayAPI.enabled $d.l7LoadBalancer) }}{{ $faults = append $faults "ingressController, gatewayAPI and loadBalancer.l7.backend=envoy require l7Proxy=true" }}{{ end }}
{{- if and (or $v.ingressController.enabled $v.gatewayAPI.enabled $v.envoyConfig.enabled) (eq "disabled" (toString $v.kubeProxyReplacement)) }}{{ $faults = append $faults "ingressController, gatewayAPI and envoyConfig require kubeProxyReplacement=true" }}{{ end }}
{{- range $path, $policy := dict "ingressController.service.externalTrafficPolicy" (and $v.ingressController.enabled $v.ingressController.service.externalTrafficPolicy) "gatewayAPI.externalTrafficPolicy" (and $v.gatewayAPI.enabled $v.gatewayAPI.externalTrafficPolicy) }}
{{- if and $policy (not (has (toString $policy) (list "Cluster" "Local"))) }}{{ $faults = append $faults (printf "%s is %q: set Cluster or Local" $path (toString $policy)) }}{{ end }}
{{- end }}
{{- if or (lt (int64 $v.envoy.baseID) 0) (gt (int64 $v.envoy.baseID) 4294967295) }}{{ $faults = append $faults "envoy.baseID must be 0 to 4294967295" }}{{ end }}
{{- if and $v.standaloneDnsProxy.enabled (eq 0 (int $v.dnsProxy.proxyPort)) }}{{ $faults = append $faults "standaloneDnsProxy.enabled requires dnsProxy.proxyPort" }}{{ end }}
{{- if and $v.authentication.mutual.spire.enabled (not $v.authentication.enabled) }}{{ $faults = append $faults "authentication.mutual.spire.enabled requires authentication.enabled=true" }}{{ end }}
{{- toJson $faults }}
{{- end }}

{{/* Values that would be silently wrong, because Skep has no such feature: refused unless skep.unsupported is `warn`. A JSON list. */}}
{{- define "skep.unsupported" -}}
{{- $v := .Values }}
{{- $d := include "skep.derived" . | fromJson }}
{{- $found := list }}
{{- if $v.encryption.enabled }}{{ $found = append $found (printf "encryption.enabled (%s): traffic between nodes would be clear text; encrypt it by other means, and set encryption.enabled=false" $v.encryption.type) }}{{ end }}
{{- range $path, $on := dict "encryption.strictMode.egress.enabled" $v.encryption.strictMode.egress.enabled "encryption.strictMode.ingress.enabled" $v.encryption.strictMode.ingress.enabled }}
{{- if $on }}{{ $found = append $found (printf "%s: clear text would not be dropped; set it to false" $path) }}{{ end }}
{{- end }}
{{- if $v.egressGateway.enabled }}{{ $found = append $found "egressGateway.enabled: traffic would leave with the address of its own node; set egressGateway.enabled=false" }}{{ end }}
{{- if $v.ingressController.enabled }}{{ $found = append $found "ingressController.enabled: Ingresses would not be served; run another ingress controller, and set ingressController.enabled=false" }}{{ end }}
{{- if $v.gatewayAPI.enabled }}{{ $found = append $found "gatewayAPI.enabled: Gateways would not be served; run another controller, and set gatewayAPI.enabled=false" }}{{ end }}
{{- range $name, $cloud := dict "eni" $v.eni "azure" $v.azure "alibabacloud" $v.alibabacloud }}
{{- if $cloud.enabled }}{{ $found = append $found (printf "%s.enabled: there is no IPAM of cloud providers; chain with the CNI of the provider by cni.chainingMode, and set %s.enabled=false" $name $name) }}{{ end }}
{{- end }}
{{- if and (has $d.ipam (list "azure" "alibabacloud")) (not $v.azure.enabled) (not $v.alibabacloud.enabled) }}{{ $found = append $found (printf "ipam.mode=%s: there is no IPAM of cloud providers; set cluster-pool, multi-pool or kubernetes" $d.ipam) }}{{ end }}
{{- if eq $d.tunnelProtocol "geneve" }}{{ $found = append $found "tunnelProtocol=geneve: set vxlan; all nodes must use the same" }}{{ end }}
{{- if eq (toString $v.loadBalancer.dsrDispatch) "geneve" }}{{ $found = append $found "loadBalancer.dsrDispatch=geneve: set opt or ipip" }}{{ end }}
{{- if hasPrefix "netkit" (toString $v.bpf.datapathMode) }}{{ $found = append $found (printf "bpf.datapathMode=%s: set veth" $v.bpf.datapathMode) }}{{ end }}
{{- if and $v.authentication.enabled $v.authentication.mutual.spire.enabled }}{{ $found = append $found "authentication.mutual.spire.enabled: policies that require authentication would not be honoured; set authentication.enabled=false" }}{{ end }}
{{- toJson $found }}
{{- end }}

{{/* Ends the rendering if there are faults. */}}
{{- define "skep.check" -}}
{{- $lines := list }}
{{- range include "skep.faults" . | fromJsonArray }}{{ $lines = append $lines (printf "  - %s" .) }}{{ end }}
{{- if ne .Values.skep.unsupported "warn" }}
{{- range include "skep.unsupported" . | fromJsonArray }}{{ $lines = append $lines (printf "  - %s (skep.unsupported)" .) }}{{ end }}
{{- end }}
{{- if $lines }}
{{- $hint := ternary "\nskep.unsupported=warn installs in spite of the values that are marked so." "" (contains "(skep.unsupported)" (join "\n" $lines)) }}
{{- fail (printf "\nvalues cannot be used:\n%s%s" (join "\n" $lines) $hint) }}
{{- end }}
{{- end }}
