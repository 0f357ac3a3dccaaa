{{/* What every pod has in common. */}}

{{/* As the "restricted" Pod Security Standard wants it. The uid is the image's. */}}
{{- define "coupon.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "coupon.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "coupon.tlsMount" -}}
{{- if .Values.tls.existingSecret }}
volumeMounts:
  - {name: tls, mountPath: /etc/coupon/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "coupon.tlsVolume" -}}
{{- with .Values.tls.existingSecret }}
volumes:
  - name: tls
    secret: {secretName: {{ . | quote }}}
{{- end }}
{{- end -}}

{{- define "coupon.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Waits until the schema is that of this release. Without it, pods would crash and back off for minutes. */}}
{{- define "coupon.waitForSchema" -}}
- name: wait-for-schema
  image: {{ include "coupon.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [coupon, migrate, --check, --within, "{{ .Values.migrations.waitSeconds }}s"]
  env:
    {{- include "coupon.installationVariables" . | nindent 4 }}
    {{- include "coupon.postgresVariables" . | nindent 4 }}
    - {name: COUPON_POSTGRES_POOL, value: "1"}
  securityContext:
    {{- include "coupon.containerSecurity" . | nindent 4 }}
  resources:
    {{- toYaml .Values.migrations.resources | nindent 4 }}
  {{- with include "coupon.tlsMount" . }}{{ . | trim | nindent 2 }}{{ end }}
{{- end -}}

{{/* Where pods go: (dict "root" $ "component" "intake" "values" .Values.intake). */}}
{{- define "coupon.placement" -}}
{{- if .root.Values.topologySpread.enabled }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ .root.Values.topologySpread.topologyKey }}
    whenUnsatisfiable: {{ .root.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "coupon.selector" . | nindent 8 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Alive and ready on the internal port. A pod may take two minutes to connect before it counts as dead. */}}
{{- define "coupon.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: internal}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: internal}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: internal}
  periodSeconds: 3
  timeoutSeconds: 3
{{- end -}}

{{- define "coupon.podMetadata" -}}
labels:
  {{- include "coupon.labels" . | nindent 2 }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
