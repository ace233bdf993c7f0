{{- define "hotloop.labels" -}}
app.kubernetes.io/name: hotloop
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "hotloop.selector" -}}
app.kubernetes.io/name: hotloop
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hotloop.key" -}}
valueFrom:
  secretKeyRef:
    name: {{ required "existingSecret names the Secret with the API key" .Values.existingSecret }}
    key: api-key
{{- end }}

{{- define "hotloop.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  runAsUser: 10001
  capabilities:
    drop: [ALL]
  seccompProfile: {type: RuntimeDefault}
readinessProbe:
  httpGet: {path: /ready, port: http}
  periodSeconds: 2
livenessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 10
  failureThreshold: 6
{{- end }}

{{/* A value as TOML has it: as JSON, but for tables. */}}
{{- define "hotloop.toml" -}}
{{- $isFirst := true }}
{{- if kindIs "map" . -}}
{{ "{" }}{{ range $name, $value := . }}{{ if not $isFirst }}, {{ end }}{{ $isFirst = false }}{{ quote $name }} = {{ include "hotloop.toml" $value }}{{ end }}{{ "}" }}
{{- else if kindIs "slice" . -}}
[{{ range . }}{{ if not $isFirst }}, {{ end }}{{ $isFirst = false }}{{ include "hotloop.toml" . }}{{ end }}]
{{- else -}}
{{ toJson . }}
{{- end }}
{{- end }}

{{- define "hotloop.most" -}}
{{- if eq .Values.autoscaling.kind "none" }}{{ .Values.replicas.count }}{{ else }}{{ .Values.autoscaling.max }}{{ end }}
{{- end }}
