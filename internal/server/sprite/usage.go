package sprite

import (
	"context"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// disks has what is known about the layers of a sprite and its checkpoints.
type disks struct {
	layers map[string]store.Usage
	at     map[string]string // the checkpoint that a layer is the last of
}

func disksOf(ctx context.Context, rows *store.Sprites, id string, list []store.Checkpoint) (disks, error) {
	layers, err := rows.Usages(ctx, id)
	at := make(map[string]string, len(list))
	for _, c := range list {
		at[c.Layer] = c.Name
	}
	return disks{layers: layers, at: at}, err
}

func (d disks) describe(c store.Checkpoint, history []string) sprites.Checkpoint {
	use := d.use(c.Layer)
	if use != nil && c.Added != nil {
		use.AddedBytes = *c.Added
	}
	return sprites.Checkpoint{
		ID: c.Name, CreateTime: c.CreatedAt, Comment: c.Comment, IsAuto: c.Auto, SourceID: c.Source, History: history,
		Cove: &sprites.CheckpointDetails{
			Labels: c.Labels, PauseMilliseconds: float64(c.PauseMicros) / 1e3, CopiedBytes: c.CopiedBytes, DiskUse: use, MemoryBytes: c.MemoryBytes,
		},
		Health: d.health(c.Layer),
	}
}

// use is what the chain below and with a layer takes; nil: that is not known yet.
func (d disks) use(layer string) *sprites.DiskUse {
	var use sprites.DiskUse
	added := true
	for first := layer; layer != ""; layer = d.layers[layer].Parent {
		l := d.layers[layer]
		if l.Digest == "" {
			return nil
		}
		added = added && (layer == first || d.at[layer] == "")
		use.SizeBytes += l.Disk
		if l.States < 2 {
			use.OwnBytes += l.Disk
		}
		if added {
			use.AddedBytes += l.Disk
		}
	}
	return &use
}

// health says what was found wrong with a chain; empty: nothing.
func (d disks) health(layer string) string {
	for ; layer != ""; layer = d.layers[layer].Parent {
		if damage := d.layers[layer].Damage; damage != "" {
			return "damaged: " + damage
		}
	}
	return ""
}
