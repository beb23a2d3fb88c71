// Validates manifests as the KubeRay operator does: unknown keys, wrong types, and its own rules.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/utils"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	for _, document := range strings.Split(string(text), "\n---\n") {
		if err == nil {
			err = validate([]byte(document))
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func validate(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "ray.io/v1 RayCluster":
		var cluster rayv1.RayCluster
		if err := yaml.UnmarshalStrict(document, &cluster); err != nil {
			return err
		}
		if err := utils.ValidateRayClusterMetadata(cluster.ObjectMeta); err != nil {
			return err
		}
		return utils.ValidateRayClusterSpec(&cluster.Spec, cluster.Annotations)
	case "ray.io/v1 RayJob":
		var job rayv1.RayJob
		if err := yaml.UnmarshalStrict(document, &job); err != nil {
			return err
		}
		if err := utils.ValidateRayJobMetadata(job.ObjectMeta); err != nil {
			return err
		}
		return utils.ValidateRayJobSpec(&job)
	case "v1 ConfigMap":
		return yaml.UnmarshalStrict(document, &corev1.ConfigMap{})
	case "v1 PersistentVolumeClaim":
		return yaml.UnmarshalStrict(document, &corev1.PersistentVolumeClaim{})
	}
	return fmt.Errorf("unknown kind %s %s", kind.APIVersion, kind.Kind)
}
