{{- define "atoll.name" -}}
{{ default (printf "%s-operator" .Release.Name) .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Objects outside of the release's namespace: releases of one name in two namespaces differ. */ -}}
{{- define "atoll.clusterName" -}}
{{ printf "%s-%s" .Release.Namespace (include "atoll.name" .) }}
{{- end }}

{{- define "atoll.selector" -}}
app.kubernetes.io/name: atoll-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "atoll.labels" -}}
{{ include "atoll.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "atoll.subject" -}}
- kind: ServiceAccount
  name: {{ include "atoll.name" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- /*
Who has made the CRD, if not this release: another release, whose uninstall has kept it, or somebody
with kubectl ("/"). Empty: this release has it, or makes it. In an upgrade a CRD that Helm would
delete, because it is not marked to be kept, is rendered whoever has made it.
*/ -}}
{{- define "atoll.crdOwner" -}}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "decoupledtrainingjobs.atoll.dev" }}
{{- if $crd }}
{{- $notes := default dict $crd.metadata.annotations }}
{{- $owner := printf "%s/%s" (default "" (get $notes "meta.helm.sh/release-namespace")) (default "" (get $notes "meta.helm.sh/release-name")) }}
{{- $own := printf "%s/%s" .Release.Namespace .Release.Name }}
{{- $kept := eq "keep" (default "" (get $notes "helm.sh/resource-policy")) }}
{{- if and (ne $owner $own) (or .Release.IsInstall $kept) }}{{ $owner }}{{ end }}
{{- end }}
{{- end }}

{{- /* What the operator may do in the namespaces that it serves. */ -}}
{{- define "atoll.rules" -}}
- apiGroups: [atoll.dev]
  resources: [decoupledtrainingjobs]
  verbs: [get, list, watch, delete]       # delete: spec.ttlSecondsAfterFinished
- apiGroups: [atoll.dev]
  resources: [decoupledtrainingjobs/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]  # never deleted
- apiGroups: [""]
  resources: [secrets]                    # by name: certificates of jobs
  verbs: [get, create, patch, delete]     # neither list nor watch, which show those of everybody
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]   # create: only to try one in a dry run
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]                          # learners' pods are Ready while they are in training
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch, create, patch]     # read: why a pod cannot be made or started
{{- end }}

{{- /* Egress rules of every pod of a job. */ -}}
{{- define "atoll.dnsAndShards" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
    - {port: 5353, protocol: UDP}         # that of OpenShift's DNS pods
    - {port: 5353, protocol: TCP}
- to:
    - podSelector:
        matchLabels: {atoll.dev/role: shard}
  ports:
    - {port: 7700, protocol: TCP}
{{- end }}

{{- /* A number of a file is a float. */ -}}
{{- define "atoll.podUser" -}}
{{- if kindIs "string" .Values.podUser }}{{ .Values.podUser }}
{{- else }}{{ int64 .Values.podUser }}
{{- end }}
{{- end }}
