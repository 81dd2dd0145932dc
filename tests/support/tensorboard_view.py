"""A folder as TensorBoard shows it: its runs, its scalars and its HParams tab."""

from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, get_experiment, list_session_groups
from tensorboard.plugins.hparams.backend_context import Context


class View:
    """What TensorBoard's own backends answer for a folder."""

    def __init__(self, folder):
        self.events = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
        provider = MultiplexerDataProvider(self.events, str(folder))
        self._context = Context(TBContext(data_provider=provider, logdir=str(folder)))

    @property
    def runs(self):
        return set(self.events.Runs())

    def series(self, run, tag):
        """Steps, times and values of a scalar."""
        found = self.events.Tensors(run, tag)
        values = [float(event.tensor_proto.float_val[0]) for event in found]
        return [e.step for e in found], [e.wall_time for e in found], values

    def columns(self):
        """The columns of hyperparameters with their domains, and the names of the metrics."""
        answer = get_experiment.Handler(
            RequestContext(), self._context, "", api_pb2.GetExperimentRequest()
        ).run()
        domains = {}
        for info in answer.hparam_infos:
            interval = info.domain_interval
            domains[info.name] = (
                (interval.min_value, interval.max_value)
                if info.WhichOneof("domain") == "domain_interval"
                else {_plain(value) for value in info.domain_discrete.values}
            )
        return domains, [info.display_name for info in answer.metric_infos]

    def rows(self):
        """The rows by name: hyperparameters, mean metrics, and the sessions of each."""
        domains, _ = self.columns()
        # as the page asks: a row is hidden if a value is in no domain
        shown = [
            api_pb2.ColParams(hparam=name, filter_discrete=_list_of(domain))
            for name, domain in domains.items()
            if isinstance(domain, set)
        ]
        request = api_pb2.ListSessionGroupsRequest(
            start_index=0,
            slice_size=1000,
            allowed_statuses=[api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE],
            aggregation_type=api_pb2.AGGREGATION_AVG,
            col_params=shown,
        )
        answer = list_session_groups.Handler(RequestContext(), self._context, "", request).run()
        rows = {}
        for group in answer.session_groups:
            hparams = {name: _plain(value) for name, value in group.hparams.items()}
            metrics = {each.name.tag: each.value for each in group.metric_values}
            rows[group.name] = (hparams, metrics, [each.name for each in group.sessions])
        return rows

    def statuses(self):
        """How each run ended."""
        request = api_pb2.ListSessionGroupsRequest(
            start_index=0,
            slice_size=1000,
            allowed_statuses=list(api_pb2.Status.values()),
        )
        answer = list_session_groups.Handler(RequestContext(), self._context, "", request).run()
        return {
            each.name: api_pb2.Status.Name(each.status)
            for group in answer.session_groups
            for each in group.sessions
        }


def _list_of(values):
    found = api_pb2.ColParams().filter_discrete
    found.extend(sorted(values))
    return found


def _plain(value):
    return getattr(value, value.WhichOneof("kind"))
