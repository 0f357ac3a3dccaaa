{{/* What only the operator is told. */}}
{{- define "coupon.operatorVariables" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- {name: COUPON_OPERATOR_LISTEN, value: "0.0.0.0:8081"}
- {name: COUPON_OPERATOR_NAMESPACES, value: {{ join "," .Values.operator.namespaces | quote }}}
- {name: COUPON_OPERATOR_LEASE, value: {{ include "coupon.name" . }}-operator}
- {name: COUPON_INTAKE_DEPLOYMENT, value: {{ include "coupon.name" . }}-intake}
- {name: COUPON_INTAKE_MIN_REPLICAS, value: {{ .Values.intake.minReplicas | quote }}}
- {name: COUPON_INTAKE_MAX_REPLICAS, value: {{ .Values.intake.maxReplicas | quote }}}
- {name: COUPON_WORKER_DEPLOYMENT, value: {{ include "coupon.name" . }}-worker}
- {name: COUPON_WORKER_MIN_REPLICAS, value: {{ .Values.worker.minReplicas | quote }}}
- {name: COUPON_WORKER_MAX_REPLICAS, value: {{ .Values.worker.maxReplicas | quote }}}
- {name: COUPON_OPERATOR_SCALE_DOWN_AFTER, value: "{{ .Values.operator.scaleDownAfterSeconds }}s"}
{{- end -}}
