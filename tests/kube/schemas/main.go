// Validates manifests as Kubernetes and the KubeRay operator do: unknown keys, wrong types, names, and KubeRay's rules.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/utils"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	for _, document := range strings.Split("\n"+string(text), "\n---\n") {
		if err == nil && strings.TrimSpace(document) != "" {
			err = validate([]byte(document))
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

var kinds = map[string]func() metav1.Object{
	"ray.io/v1 RayCluster":                func() metav1.Object { return &rayv1.RayCluster{} },
	"v1 ConfigMap":                        func() metav1.Object { return &corev1.ConfigMap{} },
	"v1 PersistentVolumeClaim":            func() metav1.Object { return &corev1.PersistentVolumeClaim{} },
	"v1 Service":                          func() metav1.Object { return &corev1.Service{} },
	"apps/v1 Deployment":                  func() metav1.Object { return &appsv1.Deployment{} },
	"networking.k8s.io/v1 NetworkPolicy":  func() metav1.Object { return &networkingv1.NetworkPolicy{} },
	"monitoring.coreos.com/v1 PodMonitor": func() metav1.Object { return &monitoring.PodMonitor{} },
}

func validate(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	create, isKnown := kinds[kind.APIVersion+" "+kind.Kind]
	if !isKnown {
		return fmt.Errorf("unknown kind %s %s", kind.APIVersion, kind.Kind)
	}
	object := create()
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return err
	}
	if err := valid(object.GetName(), validation.IsDNS1123Subdomain); err != nil {
		return err
	}
	switch found := object.(type) {
	case *rayv1.RayCluster:
		if err := utils.ValidateRayClusterMetadata(found.ObjectMeta); err != nil {
			return err
		}
		if err := pod(found.Spec.HeadGroupSpec.Template.Spec); err != nil {
			return err
		}
		for _, group := range found.Spec.WorkerGroupSpecs {
			if err := pod(group.Template.Spec); err != nil {
				return err
			}
		}
		return utils.ValidateRayClusterSpec(&found.Spec, found.Annotations)
	case *appsv1.Deployment:
		return pod(found.Spec.Template.Spec)
	case *corev1.Service:
		for _, port := range found.Spec.Ports {
			if err := valid(port.Name, validation.IsDNS1123Label); err != nil {
				return err
			}
		}
		return valid(found.Name, validation.IsDNS1035Label)
	}
	return nil
}

// pod checks the names of the containers of a pod, of their ports, and of the volumes that they mount.
func pod(spec corev1.PodSpec) error {
	volumes := map[string]bool{}
	for _, volume := range spec.Volumes {
		volumes[volume.Name] = true
	}
	for _, container := range append(spec.InitContainers, spec.Containers...) {
		if err := valid(container.Name, validation.IsDNS1123Label); err != nil {
			return err
		}
		for _, port := range container.Ports {
			if err := valid(port.Name, validation.IsValidPortName); err != nil {
				return err
			}
		}
		for _, mount := range container.VolumeMounts {
			if !volumes[mount.Name] {
				return fmt.Errorf("%s mounts %s, which is no volume of its pod", container.Name, mount.Name)
			}
		}
	}
	return nil
}

func valid(name string, check func(string) []string) error {
	if problems := check(name); len(problems) > 0 {
		return fmt.Errorf("%s: %s", name, strings.Join(problems, "; "))
	}
	return nil
}
