{{- define "raymq.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "raymq.labels" -}}
app.kubernetes.io/name: raymq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The name by which all pods of Kubernetes reach a Service: (list . "nameserver"). */}}
{{- define "raymq.host" -}}
{{ (index . 0).Release.Name }}-{{ index . 1 }}.{{ (index . 0).Release.Namespace }}.svc
{{- end }}

{{- /* The settings that all processes have. */}}
{{- define "raymq.settings" -}}
metrics_host: 0.0.0.0
{{- if not .Values.insecure }}
metrics_token_file: /mnt/raymq/auth/metrics-token
{{- end }}
{{- end }}

{{- /* The settings of access control and TLS, which all processes but the console and the autoscaler have. */}}
{{- define "raymq.access" -}}
{{ include "raymq.settings" . }}
{{- if not .Values.insecure }}
authentication_enabled: true
inner_credentials_file: /mnt/raymq/keys/inner.key
{{- end }}
{{- if .Values.tls.secret }}
tls: enforced
tls_certificate: /mnt/raymq/tls/tls.crt
tls_key: /mnt/raymq/tls/tls.key
tls_ca: /mnt/raymq/tls/ca.crt
{{- end }}
{{- end }}

{{- define "raymq.mounts" -}}
- {name: data, mountPath: /mnt/raymq/data}
- {name: config, mountPath: /mnt/raymq/config, readOnly: true}
{{- if not .Values.insecure }}
- {name: auth, mountPath: /mnt/raymq/auth, readOnly: true}
- {name: keys, mountPath: /mnt/raymq/keys}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /mnt/raymq/tls, readOnly: true}
{{- end }}
{{- end }}

{{- /* The volumes of a pod, with its claim, and the container that copies the key: (list . CLAIM). */}}
{{- define "raymq.pod" -}}
{{- $claim := index . 1 }}
{{- with index . 0 -}}
securityContext: {{ toJson .Values.podSecurityContext }}
{{- if not .Values.insecure }}
initContainers:
  - name: keys   # files of a Secret are readable by the group, which RayMQ refuses for its keys
    {{- include "raymq.image" . | nindent 4 }}
    command: [install, -m, "0600", /mnt/raymq/auth/inner.key, /mnt/raymq/keys/inner.key]
    volumeMounts:
      - {name: auth, mountPath: /mnt/raymq/auth, readOnly: true}
      - {name: keys, mountPath: /mnt/raymq/keys}
{{- end }}
volumes:
  - name: data
    persistentVolumeClaim: {claimName: {{ $claim }}}
  - name: config
    configMap: {name: {{ .Release.Name }}}
  {{- if not .Values.insecure }}
  - name: auth
    secret: {secretName: {{ .Values.auth.secret }}, defaultMode: 0440}
  - name: keys
    emptyDir: {medium: Memory, sizeLimit: 1Mi}
  {{- end }}
  {{- if .Values.tls.secret }}
  - name: tls
    secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 0440}
  {{- end }}
{{- end }}
{{- end }}

{{- /* The token of Ray, which all its processes and clients need. */}}
{{- define "raymq.token" -}}
{{- if .Values.insecure }}
- {name: RAY_AUTH_MODE, value: disabled}
{{- else }}
- {name: RAY_AUTH_MODE, value: token}
- {name: RAY_AUTH_TOKEN, valueFrom: {secretKeyRef: {name: {{ .Values.auth.secret }}, key: ray-token}}}
{{- end }}
{{- end }}

{{- /* What a program in a pod needs as a client of the cluster. */}}
{{- define "raymq.client" -}}
- {name: RAYMQ_NAMESERVERS, value: "{{ include "raymq.host" (list . "nameserver") }}:9876"}
{{- if not .Values.insecure }}
- {name: RAYMQ_CREDENTIALS, value: /mnt/raymq/keys/inner.key}
{{- end }}
{{- if .Values.tls.secret }}
- {name: RAYMQ_TLS_CA, value: /mnt/raymq/tls/ca.crt}
{{- end }}
{{- end }}
