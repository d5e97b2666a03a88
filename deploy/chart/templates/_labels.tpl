{{- define "ostler.labels" }}
    app.kubernetes.io/name: ostler
    app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
