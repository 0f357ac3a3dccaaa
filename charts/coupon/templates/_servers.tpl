{{/* Where the servers are, as environment variables: the same for every process. */}}

{{/* A variable from a Secret: (dict "name" … "secret" … "key" …). */}}
{{- define "coupon.secretVariable" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ .secret | quote }}, key: {{ .key | quote }}}
{{- end -}}

{{- define "coupon.installationVariables" -}}
- {name: COUPON_KEY_PREFIX, value: {{ .Values.installation.keyPrefix | quote }}}
- {name: COUPON_NAMESPACE, value: {{ .Values.installation.namespace | default .Release.Namespace | quote }}}
- {name: COUPON_PUBLISH_TIMEOUT, value: "{{ .Values.installation.publishTimeoutSeconds }}s"}
- {name: COUPON_CLOCK_MARGIN, value: "{{ .Values.installation.clockMarginSeconds }}s"}
- {name: COUPON_DEV, value: {{ .Values.installation.dev | quote }}}
- {name: COUPON_LOG_FORMAT, value: {{ .Values.logs.format | quote }}}
- {name: COUPON_LOG, value: {{ .Values.logs.filter | quote }}}
{{- end -}}

{{- define "coupon.redisVariables" -}}
{{- $secret := .Values.redis.existingSecret -}}
- {name: COUPON_REDIS_MODE, value: {{ .Values.redis.mode | quote }}}
{{- if and $secret.name $secret.urlsKey }}
{{ include "coupon.secretVariable" (dict "name" "COUPON_REDIS_URLS" "secret" $secret.name "key" $secret.urlsKey) }}
{{- else }}
- {name: COUPON_REDIS_URLS, value: {{ tpl (join "," .Values.redis.urls) . | quote }}}
{{- end }}
- {name: COUPON_REDIS_SENTINEL_MASTER, value: {{ .Values.redis.sentinelMaster | quote }}}
- {name: COUPON_REDIS_TIMEOUT, value: "{{ .Values.redis.timeoutSeconds }}s"}
{{- if and $secret.name $secret.usernameKey }}
{{ include "coupon.secretVariable" (dict "name" "COUPON_REDIS_USERNAME" "secret" $secret.name "key" $secret.usernameKey) }}
{{- end }}
{{- if and $secret.name $secret.passwordKey }}
{{ include "coupon.secretVariable" (dict "name" "COUPON_REDIS_PASSWORD" "secret" $secret.name "key" $secret.passwordKey) }}
{{- end }}
{{- if and .Values.tls.existingSecret .Values.tls.redisCaKey }}
- {name: SSL_CERT_FILE, value: "/etc/coupon/tls/{{ .Values.tls.redisCaKey }}"}
{{- end }}
{{- end -}}

{{- define "coupon.kafkaVariables" -}}
{{- $secret := .Values.kafka.existingSecret -}}
- {name: COUPON_KAFKA_BROKERS, value: {{ tpl .Values.kafka.brokers . | quote }}}
{{- if and $secret.name $secret.propertiesKey }}
{{ include "coupon.secretVariable" (dict "name" "COUPON_KAFKA_PROPERTIES" "secret" $secret.name "key" $secret.propertiesKey) }}
{{- else if .Values.kafka.properties }}
{{- $properties := list }}
{{- range $key, $value := .Values.kafka.properties }}
{{- $properties = append $properties (printf "%s=%v" $key $value) }}
{{- end }}
- {name: COUPON_KAFKA_PROPERTIES, value: {{ join "," $properties | quote }}}
{{- end }}
{{- end -}}

{{- define "coupon.postgresVariables" -}}
{{- $secret := .Values.postgres.existingSecret -}}
{{- if and $secret.name $secret.urlKey }}
{{- include "coupon.secretVariable" (dict "name" "COUPON_POSTGRES_URL" "secret" $secret.name "key" $secret.urlKey) }}
{{- else -}}
- {name: COUPON_POSTGRES_URL, value: {{ tpl .Values.postgres.url . | quote }}}
{{- end }}
{{- end -}}

{{/* All of them: (dict "root" $ "pool" 4). */}}
{{- define "coupon.variables" -}}
{{ include "coupon.installationVariables" .root }}
{{ include "coupon.redisVariables" .root }}
{{ include "coupon.kafkaVariables" .root }}
{{ include "coupon.postgresVariables" .root }}
- {name: COUPON_POSTGRES_POOL, value: {{ .pool | quote }}}
{{- end -}}
