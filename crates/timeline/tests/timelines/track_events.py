"""What Perfetto's own definition of its format finds in a file, as JSON.

Tracks by name, each with its slices and instants in the order of their moments: begin, end (none for an instant), name,
category, arguments, flows. Fails where slices do not nest, or a name was not interned before its use.
"""

import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

trace = proto.Trace()
with open(sys.argv[1], "rb") as file:
    trace.ParseFromString(file.read())

event_names, categories, argument_names = {}, {}, {}
tracks, open_slices, last = {}, {}, {}
clock = None
for packet in trace.packet:
    if packet.HasField("clock_snapshot"):
        clock = {c.clock_id: c.timestamp for c in packet.clock_snapshot.clocks}
        assert packet.clock_snapshot.primary_trace_clock == 3
    for names, interned in (
        (event_names, packet.interned_data.event_names),
        (categories, packet.interned_data.event_categories),
        (argument_names, packet.interned_data.debug_annotation_names),
    ):
        names.update({entry.iid: entry.name for entry in interned})
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        name = track.thread.thread_name or track.process.process_name or track.name
        assert track.uuid not in tracks
        tracks[track.uuid] = {"name": name, "tid": track.thread.tid, "pid": track.process.pid, "events": []}
        open_slices[track.uuid], last[track.uuid] = [], 0
    if not packet.HasField("track_event"):
        continue
    event, at = packet.track_event, packet.timestamp - clock[3]
    track = tracks[event.track_uuid]
    assert at >= last[event.track_uuid], "a track's packets are out of order"
    last[event.track_uuid] = at
    if event.type == proto.TrackEvent.TYPE_SLICE_END:
        open_slices[event.track_uuid].pop()["end"] = at
        continue
    arguments = {}
    for argument in event.debug_annotations:
        arguments[argument_names[argument.name_iid]] = getattr(argument, argument.WhichOneof("value"))
    row = {
        "begin": at,
        "end": None,
        "name": event_names[event.name_iid],
        "category": [categories[iid] for iid in event.category_iids],
        "arguments": arguments,
        "flows": list(event.flow_ids),
    }
    track["events"].append(row)
    if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
        open_slices[event.track_uuid].append(row)
    else:
        assert event.type == proto.TrackEvent.TYPE_INSTANT
assert not any(open_slices.values()), "a slice without an end"
print(json.dumps({"clock": clock, "tracks": list(tracks.values())}))
