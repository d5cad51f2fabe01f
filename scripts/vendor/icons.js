export {
  Activity, ArrowLeft, BookOpen, Brain, ChartColumn, Check, CircleQuestionMark, Clock, Database, FileUp, GitCompareArrows, KeyRound, Pause, PanelRight,
  Play, Plug, Plus, Search, Settings, SquareTerminal, StepBack, StepForward, Table2, TriangleAlert, Waypoints, X,
} from "lucide";
