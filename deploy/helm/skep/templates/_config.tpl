{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Data of ConfigMap cilium-config, as YAML: the keys of files/config.yaml, then those of extraConfig. */}}
{{- define "skep.config" -}}
{{- if not (hasKey .Values "_config") }}{{ $_ := set .Values "_config" (include "skep.configAll" .) }}{{ end }}
{{- .Values._config }}
{{- end }}

{{- define "skep.configAll" -}}
{{- $all := mustToJson .Values | mustFromJson }}
{{- $_ := set $all "derived" (include "skep.derived" . | fromJson) }}
{{- $data := dict }}
{{- range $group := .Files.Get "files/config.yaml" | fromYamlArray }}
{{- $on := true }}
{{- with $group.when }}{{ $on = include "skep.isSet" (dict "in" $all "path" .) }}{{ end }}
{{- if $on }}
{{- range $form, $keys := omit $group "when" }}
{{- range $key, $path := $keys }}
{{- $value := $all }}
{{- range splitList "." $path }}{{ if kindIs "map" $value }}{{ $value = index $value . }}{{ else }}{{ $value = "" }}{{ end }}{{ end }}
{{- $text := include "skep.text" (dict "value" $value "join" (ternary "," " " (eq $form "commas"))) }}
{{- if and (eq $form "switches") (ne $text "true") }}{{ $text = "" }}
{{- else if and (eq $form "numbers") (eq $text "0") }}{{ $text = "" }}
{{- else if and (eq $form "json") $value }}{{ $text = ternary $value (toJson $value) (kindIs "string" $value) }}
{{- else if and (eq $form "durations") $text (not (regexMatch "^[+-]?(0|([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|ms|s|m|h)([0-9.]+(ns|us|µs|ms|s|m|h))*)$" $text)) }}
{{- fail (printf "%s: %q is not a duration; write a number with a unit, such as 30s or 5m" $path $text) }}
{{- end }}
{{- if ne $text "" }}{{ $_ := set $data $key $text }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $key, $value := .Values.extraConfig }}{{ $_ := set $data $key (include "skep.text" (dict "value" $value)) }}{{ end }}
{{- range $key, $value := $data }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Whether a value is true, not zero and not empty: (dict "in" VALUES "path" PATH). */}}
{{- define "skep.isSet" -}}
{{- $value := .in }}
{{- range splitList "." .path }}{{ if kindIs "map" $value }}{{ $value = index $value . }}{{ else }}{{ $value = "" }}{{ end }}{{ end }}
{{- if and $value (ne (toString $value) "false") }}true{{ end }}
{{- end }}
