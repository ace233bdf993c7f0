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
readinessProbe:
  httpGet: {path: /ready, port: http}
  periodSeconds: 2
livenessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 10
  failureThreshold: 6
{{- end }}

{{- define "hotloop.most" -}}
{{- if eq .Values.autoscaling.kind "none" }}{{ .Values.replicas.count }}{{ else }}{{ .Values.autoscaling.max }}{{ end }}
{{- end }}
