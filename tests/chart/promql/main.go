// Evaluates PromQL with Prometheus' own storage and engine over what programs export.
//
// Standard input: {"scrapes": [{"at": seconds, "labels": {...}, "text": "exposition"}], "queries":
// [...], "at": seconds}. Standard output: for each query {"query", "error", "series"}.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
)

type scrape struct {
	At     float64           `json:"at"`
	Labels map[string]string `json:"labels"`
	Text   string            `json:"text"`
}

type answer struct {
	Query  string   `json:"query"`
	Error  string   `json:"error"`
	Series []string `json:"series"`
}

func main() {
	var in struct {
		Scrapes []scrape `json:"scrapes"`
		Queries []string `json:"queries"`
		At      float64  `json:"at"`
	}
	must(json.NewDecoder(os.Stdin).Decode(&in))
	folder, err := os.MkdirTemp("", "promq")
	must(err)
	defer os.RemoveAll(folder)
	db, err := tsdb.Open(folder, nil, nil, tsdb.DefaultOptions(), nil)
	must(err)
	defer db.Close()
	for _, each := range in.Scrapes {
		must(store(db, each))
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	out := []answer{}
	for _, text := range in.Queries {
		out = append(out, ask(engine, db, text, in.At))
	}
	must(json.NewEncoder(os.Stdout).Encode(out))
}

func ask(engine *promql.Engine, db *tsdb.DB, text string, at float64) answer {
	found := answer{Query: text, Series: []string{}}
	query, err := engine.NewInstantQuery(context.Background(), db, nil, text, time.UnixMilli(int64(at*1000)))
	if err != nil {
		found.Error = err.Error()
		return found
	}
	defer query.Close()
	result := query.Exec(context.Background())
	if result.Err != nil {
		found.Error = result.Err.Error()
		return found
	}
	vector, err := result.Vector()
	if err != nil {
		found.Error = err.Error()
		return found
	}
	for _, sample := range vector {
		found.Series = append(found.Series, sample.String())
	}
	return found
}

func store(db *tsdb.DB, each scrape) error {
	appender := db.Appender(context.Background())
	parser := textparse.NewPromParser([]byte(each.Text), labels.NewSymbolTable(), false)
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			return appender.Commit()
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := parser.Series()
		var own labels.Labels
		parser.Labels(&own)
		builder := labels.NewBuilder(own)
		for name, text := range each.Labels {
			builder.Set(name, text)
		}
		if _, err := appender.Append(0, builder.Labels(), int64(each.At*1000), value); err != nil {
			return err
		}
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
