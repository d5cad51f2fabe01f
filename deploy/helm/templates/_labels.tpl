{{- define "kgserve.selector" -}}
app.kubernetes.io/name: kgserve
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kgserve.labels" -}}
{{ include "kgserve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
