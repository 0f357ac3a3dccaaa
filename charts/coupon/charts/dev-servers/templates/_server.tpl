{{/* One server: its Service, and a Deployment that never runs twice. (dict "root" $ "name" … "port" … "image" … "command" …
     "uid" … "gid" … "memory" …) */}}
{{- define "dev-servers.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: dev-server
{{- end -}}

{{- define "dev-servers.keep" -}}
{{- if .root.Values.keep }}
annotations: {helm.sh/resource-policy: keep}
{{- end }}
{{- end -}}

{{- define "dev-servers.server" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels:
    {{- include "dev-servers.labels" . | nindent 4 }}
  {{- with include "dev-servers.keep" . }}{{ . | trim | nindent 2 }}{{ end }}
spec:
  selector:
    {{- include "dev-servers.labels" . | nindent 4 }}
  ports:
    - {port: {{ .port }}}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels:
    {{- include "dev-servers.labels" . | nindent 4 }}
  {{- with include "dev-servers.keep" . }}{{ . | trim | nindent 2 }}{{ end }}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector:
    matchLabels:
      {{- include "dev-servers.labels" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "dev-servers.labels" . | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: {{ .uid }}
        runAsGroup: {{ .gid }}
        fsGroup: {{ .gid }}
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: {{ .name }}
          image: {{ .image | quote }}
          imagePullPolicy: IfNotPresent
          workingDir: /data
          command:
            - sh
            - -ec
            - |
              {{- .command | nindent 14 }}
          ports:
            - {containerPort: {{ .port }}}
          readinessProbe:
            tcpSocket: {port: {{ .port }}}
            periodSeconds: 2
          securityContext:
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
          resources:
            requests: {cpu: 50m, memory: {{ .memory }}}
          volumeMounts:
            - {name: data, mountPath: /data}
      volumes:
        - name: data
          emptyDir: {}
{{- end -}}
